//! `forkd push` and `forkd pull` through a bucket of a server that speaks S3.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forkd_protocol::rest::HubTag;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

use crate::support::{Controller, Ran};

const KEY: &str = "key-of-a-test";
const SECRET: &str = "secret-of-a-test";

/// An S3 server with one bucket, `bucket`.
struct Server {
    url: String,
    /// How many objects may still be written; others are refused.
    writes: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bucket")).unwrap();
        let service = {
            let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap());
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
            builder.build()
        };
        let writes = Arc::new(AtomicUsize::new(usize::MAX));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let left = Arc::clone(&writes);
        let url = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (service, left) = (service.clone(), Arc::clone(&left));
                    let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                        let (service, left) = (service.clone(), Arc::clone(&left));
                        async move {
                            let writes = request.method() == hyper::Method::PUT
                                && request.uri().path().contains("/objects/");
                            let take = |n: usize| n.checked_sub(1);
                            if writes && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err()
                            {
                                let mut refused = hyper::Response::new(s3s::Body::empty());
                                *refused.status_mut() = hyper::StatusCode::FORBIDDEN;
                                return Ok(refused);
                            }
                            service.call(request.map(s3s::Body::from)).await
                        }
                    });
                    tokio::spawn(
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), answer),
                    );
                }
            });
            url
        });
        Self { url, writes, _folder: folder, _runtime: runtime }
    }

    fn run(&self, controller: &Controller, args: &[&str]) -> Ran {
        Ran(self.keys(&mut controller.command(args)).output().unwrap())
    }

    fn keys<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs([
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT", &self.url),
            ("AWS_ALLOW_HTTP", "true"),
        ])
    }
}

#[test]
fn a_bucket_is_a_hub_and_a_push_that_breaks_off_goes_on() {
    let (from, to) = (Controller::with_chain(), Controller::empty());
    let server = Server::start();
    server.writes.store(2, Ordering::SeqCst);
    server.run(&from, &["push", "b", "s3://bucket/hub"]).fails_with(10);
    // Nothing shows before all of it is there.
    server.run(&to, &["images", "--remote", "s3://bucket/hub"]).fails_with(3);
    server.writes.store(usize::MAX, Ordering::SeqCst);
    let pushed = server.run(&from, &["push", "b", "s3://bucket/hub"]).moved();
    assert_eq!(pushed.objects_moved, pushed.objects - 2);
    let again = server.run(&from, &["push", "b", "s3://bucket/hub"]).moved();
    assert_eq!((again.objects, again.objects_moved), (pushed.objects, 0));

    let listed: Vec<HubTag> = server.run(&to, &["images", "--remote", "s3://bucket/hub/"]).parsed();
    assert_eq!(listed.iter().map(|t| t.tag.as_str()).collect::<Vec<_>>(), ["b"]);
    let pulled = server.run(&to, &["pull", "s3://bucket/hub/b", "--tag", "mine"]).moved();
    assert_eq!((pulled.objects_moved, pulled.tag.as_str(), &pulled.id), (pushed.objects, "mine", &pushed.id));
    to.is_sound_with(2);
    server.run(&to, &["pull", "s3://bucket/elsewhere/b"]).fails_with(3);
}

#[test]
fn a_bucket_without_the_right_key_says_so() {
    let from = Controller::with_chain();
    let server = Server::start();
    let mut command = from.command(&["push", "b", "s3://bucket/hub"]);
    let ran = Ran(server.keys(&mut command).env("AWS_SECRET_ACCESS_KEY", "wrong").output().unwrap());
    assert!(ran.fails_with(10).contains("s3://bucket/hub could not be used"));
}
