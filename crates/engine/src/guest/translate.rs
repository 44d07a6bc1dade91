//! Between what clients say and what agents say.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_protocol::guest::{Eval, Evaluated, Exec, Executed, Health};
use forkd_protocol::rest::{
    EvalRequest, EvalResponse, ExecRequest, ExecResponse, MAX_TIMEOUT_SECS, PingResponse,
};

use super::{GuestError, Limits, SMALL_ANSWER};

/// Most bytes of each of stdout and stderr in one answer; more is to be streamed.
const MAX_OUTPUT: u64 = 16 << 20;
/// Most bytes an answer to eval carries: the agent cuts each of its texts at 16 MiB.
const MAX_EVALUATED: usize = 80 << 20;
fn millis(secs: u64) -> u64 {
    secs.min(MAX_TIMEOUT_SECS) * 1000
}

/// What an exec may take: base64 of both streams, and its own time (0 is for ever) with the grace.
pub(crate) fn exec_bounds(timeout_secs: u64, grace: Duration) -> Limits {
    let time = (timeout_secs > 0).then(|| Duration::from_millis(millis(timeout_secs)) + grace);
    Limits { time, bytes: SMALL_ANSWER + 2 * (MAX_OUTPUT as usize).div_ceil(3) * 4 }
}

pub(crate) fn exec_request(asked: ExecRequest) -> Exec {
    let ExecRequest { args, timeout_secs, env, cwd, user, stdin_base64 } = asked;
    Exec { args, env, cwd, user, stdin_base64, timeout_ms: millis(timeout_secs), max_output: MAX_OUTPUT }
}

/// Text as text, and the exact bytes beside it where they are none.
pub(crate) fn exec_response(told: Executed) -> Result<ExecResponse, GuestError> {
    let (stdout, stdout_base64) = text(told.stdout_base64)?;
    let (stderr, stderr_base64) = text(told.stderr_base64)?;
    Ok(ExecResponse {
        stdout,
        stderr,
        exit_code: told.exit_code,
        stdout_base64,
        stderr_base64,
        signal: told.signal,
        truncated: told.truncated,
        timed_out: told.timed_out,
        micros: told.micros,
    })
}

fn text(base64: String) -> Result<(String, Option<String>), GuestError> {
    let bytes = STANDARD.decode(&base64).map_err(|e| GuestError::BrokeOff(e.into()))?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(e) => (String::from_utf8_lossy(e.as_bytes()).into_owned(), Some(base64)),
    })
}

/// The question to the agent, and what it may take. An eval is always bounded: 0 is the shortest time.
pub(crate) fn eval_request(asked: EvalRequest, grace: Duration) -> (Eval, Limits) {
    let timeout_ms = millis(asked.timeout_secs.max(1));
    let limits = Limits { time: Some(Duration::from_millis(timeout_ms) + grace), bytes: MAX_EVALUATED };
    (Eval { code: asked.code, timeout_ms }, limits)
}

pub(crate) fn eval_response(told: Evaluated) -> EvalResponse {
    let (error, traceback) = match told.error {
        Some(e) => (Some(error_line(&e.name, &e.value)), Some(e.traceback)),
        None => (None, None),
    };
    EvalResponse {
        result: told.result,
        exit_code: i32::from(error.is_some()),
        error,
        result_json: told.result_json,
        traceback,
        stdout: told.stdout,
        stderr: told.stderr,
        timed_out: told.timed_out,
        truncated: told.truncated,
        micros: told.micros,
    }
}

/// As Python prints it: `KeyboardInterrupt` without a message has no colon.
pub(crate) fn error_line(name: &str, value: &str) -> String {
    if value.is_empty() { name.to_owned() } else { format!("{name}: {value}") }
}

pub(crate) fn ping_response(told: Health) -> PingResponse {
    PingResponse {
        pong: true,
        numpy_version: told.numpy_version,
        pid: 1,
        agent_lang: "python".to_owned(),
        warmup_ready: told.warm,
        agent: told.agent,
    }
}

#[cfg(test)]
mod tests {
    use forkd_protocol::guest::PythonError;

    use super::*;

    fn executed(stdout: &[u8]) -> Executed {
        Executed {
            exit_code: 0,
            signal: None,
            stdout_base64: STANDARD.encode(stdout),
            stderr_base64: String::new(),
            truncated: false,
            timed_out: false,
            micros: 7,
        }
    }

    #[test]
    fn text_comes_as_text_and_bytes_come_whole_beside_it() {
        let plain = exec_response(executed("grün\n".as_bytes())).unwrap();
        assert_eq!((plain.stdout.as_str(), plain.stdout_base64), ("grün\n", None));
        let all: Vec<u8> = (0..=255).collect();
        let bytes = exec_response(executed(&all)).unwrap();
        assert!(bytes.stdout.contains('\u{fffd}'));
        assert_eq!(STANDARD.decode(bytes.stdout_base64.unwrap()).unwrap(), all);
    }

    #[test]
    fn lying_base64_is_an_error() {
        let mut lie = executed(b"");
        lie.stdout_base64 = "%%%".to_owned();
        assert!(exec_response(lie).is_err());
    }

    #[test]
    fn times_do_not_overflow_and_zero_is_for_ever() {
        assert!(exec_bounds(0, Duration::from_secs(1)).time.is_none());
        assert!(exec_bounds(u64::MAX, Duration::from_secs(1)).time.is_some());
        let eval = EvalRequest { code: String::new(), timeout_secs: u64::MAX };
        assert_eq!(eval_request(eval, Duration::ZERO).0.timeout_ms, MAX_TIMEOUT_SECS * 1000);
    }

    #[test]
    fn exceptions_become_one_line_and_a_traceback() {
        let error =
            PythonError { name: "ValueError".into(), value: "no".into(), traceback: "Traceback…".into() };
        let told = eval_response(Evaluated { error: Some(error), ..Evaluated::default() });
        assert_eq!((told.error.as_deref(), told.exit_code), (Some("ValueError: no"), 1));
        assert_eq!(error_line("KeyboardInterrupt", ""), "KeyboardInterrupt");
    }
}
