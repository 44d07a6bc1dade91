use std::time::{Duration, Instant};

use bytes::Bytes;
use forkd_engine::{Body, EngineError, GuestError, SandboxError};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::EvalRequest;
use http::Request;
use http_body_util::{BodyExt, Full};

use crate::support::*;

#[tokio::test]
async fn verbs_are_translated() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let child = fork_one(&engine).await;
    let eval = engine.eval(&child, EvalRequest { code: "1+1".to_owned(), timeout_secs: 5 }).await.unwrap();
    assert_eq!((eval.result.as_deref(), eval.exit_code), (Some("1+1"), 0));
    let pong = engine.ping(&child).await.unwrap();
    assert_eq!((pong.pong, pong.pid, pong.numpy_version.as_deref()), (true, 1, Some("2.0")));
    let bytes = exec(&engine, &child, &["bytes"]).await.unwrap();
    assert!(bytes.stdout_base64.is_some() && bytes.stderr_base64.is_none());
    let e = exec(&engine, &child, &[]).await.unwrap_err();
    assert_eq!(e.class(), ErrorClass::Caller);
    let e = exec(&engine, &child, &["refuse"]).await.unwrap_err();
    assert_eq!((e.class(), e.code()), (ErrorClass::Caller, "no_such_user"));
    let used = engine.stats(&child).await.unwrap();
    assert!(used.monitor_private_bytes > 0);
}

#[tokio::test]
async fn calls_share_a_connection_and_calls_at_once_do_not_wait_for_each_other() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let child = fork_one(&engine).await;
    for _ in 0..20 {
        engine.ping(&child).await.unwrap();
    }
    // Made while forking, used ever since.
    assert_eq!(exec(&engine, &child, &["connections"]).await.unwrap().stdout, "1");
    let stalling = exec(&engine, &child, &["stall"]);
    let beside = async { exec(&engine, &child, &["beside"]).await.unwrap().stdout };
    let (late, beside) = tokio::join!(stalling, beside);
    assert_eq!(beside, "beside");
    assert!(matches!(late, Err(EngineError::Guest(GuestError::Late { .. }))));
}

#[tokio::test]
async fn what_stalls_floods_or_lies_is_bounded_and_the_sandbox_goes_on() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let child = fork_one(&engine).await;
    for (verb, code) in [
        ("stall", "guest_timeout"),
        ("trickle", "guest_timeout"),
        ("flood", "answer_too_large"),
        ("cut", "guest_fault"),
        ("nonsense", "guest_fault"),
        ("headers", "guest_fault"),
    ] {
        let started = Instant::now();
        let e = exec(&engine, &child, &[verb]).await.unwrap_err();
        assert_eq!((e.code(), e.class()), (code, ErrorClass::GuestFault), "{verb}: {e}");
        assert!(started.elapsed() < Duration::from_secs(15), "{verb}");
        assert_eq!(exec(&engine, &child, &["fine"]).await.unwrap().stdout, "fine", "after {verb}");
    }
}

#[tokio::test]
async fn a_sandbox_that_dies_says_why_and_holds_nothing() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    for (verb, reason) in [("shutdown", "the guest shut down"), ("stop", "stopped itself")] {
        let child = fork_one(&engine).await;
        let e = exec(&engine, &child, &[verb]).await.unwrap_err();
        assert!(matches!(e, EngineError::Sandbox(SandboxError::Ended { .. })), "{e}");
        assert!(e.to_string().contains(reason), "{e}");
        let info = engine.sandbox(&child).unwrap();
        assert_eq!((info.state.as_str(), info.pid), ("ended", None));
        assert!(info.ended.unwrap().contains(reason));
        assert_eq!(names(&house.root().join("run").join(child.as_str())), ["console.log", "monitor.log"]);
        let e = engine.eval(&child, EvalRequest { code: String::new(), timeout_secs: 1 }).await.unwrap_err();
        assert_eq!((e.code(), e.class()), ("sandbox_ended", ErrorClass::Conflict));
        assert!(engine.console(&child).await.unwrap().is_empty());
        engine.monitor_log(&child).await.unwrap();
        engine.kill(&child).await.unwrap();
    }
    assert!(house.run_folders().is_empty() && engine.store().sandboxes().unwrap().is_empty());
}

#[tokio::test]
async fn a_monitor_killed_from_outside_is_noticed_and_ends_what_waits_for_it() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let child = fork_one(&engine).await;
    let pid = engine.sandbox(&child).unwrap().pid.unwrap();
    let mut forever = command(&["stall"]);
    forever.timeout_secs = 0;
    let waiting = tokio::spawn({
        let (engine, child) = (engine.clone(), child.clone());
        async move { engine.exec(&child, forever).await }
    });
    tokio::task::yield_now().await;
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let e = waiting.await.unwrap().unwrap_err();
    assert!(e.to_string().contains("killed by signal 9"), "{e}");
    assert_eq!(engine.sandbox(&child).unwrap().state, "ended");
}

#[tokio::test]
async fn requests_are_passed_on_streaming_without_what_is_about_the_connection() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let child = fork_one(&engine).await;
    let payload = vec![b'z'; 3 << 20];
    let body: Body = Full::new(Bytes::from(payload.clone())).map_err(|never| match never {}).boxed();
    let request = Request::post("http://elsewhere/echo?x=1")
        .header("connection", "keep-alive, x-secret")
        .header("x-secret", "1")
        .header("x-own", "1")
        .body(body)
        .unwrap();
    let response = engine.agent_request(&child, request).await.unwrap();
    let seen = response.headers()["x-seen"].to_str().unwrap().to_owned();
    assert!(seen.contains("x-own") && !seen.contains("x-secret") && !seen.contains("connection"), "{seen}");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), payload);
}

#[tokio::test]
async fn a_monitor_that_is_stopped_ends_calls_at_their_time_and_costs_no_thread() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let child = fork_one(&engine).await;
    let pid = engine.sandbox(&child).unwrap().pid.unwrap();
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    signal(rustix::process::Signal::STOP);
    let started = Instant::now();
    let calls = futures::future::join_all((0..50).map(|_| exec(&engine, &child, &["fine"])));
    let beside = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        threads()
    };
    let (calls, during) = tokio::join!(calls, beside);
    for e in calls.into_iter().map(Result::unwrap_err) {
        assert_eq!((e.code(), e.class()), ("guest_timeout", ErrorClass::GuestFault), "{e}");
    }
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(during <= before + 4, "{before} threads before, {during} while 50 calls wait");
    signal(rustix::process::Signal::CONT);
    assert_eq!(exec(&engine, &child, &["fine"]).await.unwrap().stdout, "fine");
}
