//! `forkd cp`: files and folders, into a sandbox or out of it, as one archive.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forkd_protocol::guest::PATH_TAR;
use forkd_protocol::names::SandboxId;
use http::{Method, header};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::archive;
use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;
use crate::parse::percent;
use crate::ui::{self, Step};

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);

/// Copy files and folders into a sandbox or out of it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd cp data.csv sb-6a2f-0001:/srv/\n  forkd cp -r ./app sb-6a2f-0001:/srv/app\n  \
                  forkd cp -r sb-6a2f-0001:/var/log logs\n\nWhere the destination is a folder that is there, the copy lies in it; \
                  otherwise it is called as the destination."
)]
pub(crate) struct Args {
    /// What: PATH here, or ID:PATH
    #[arg(value_name = "FROM")]
    from: Side,
    /// Where to: PATH here, or ID:PATH
    #[arg(value_name = "TO")]
    to: Side,
    /// Folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Owner in the sandbox
    #[arg(long, value_name = "NAME", default_value = "root")]
    user: String,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    Sandbox(SandboxId, String),
}

impl FromStr for Side {
    type Err = Infallible;

    /// The id of a sandbox before a colon begins with `sb-`; all else is a path.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let remote = text.split_once(':').filter(|(id, _)| id.starts_with("sb-"));
        let remote = remote.and_then(|(id, path)| Some((id.parse().ok()?, path)));
        Ok(match remote {
            Some((id, path)) => Self::Sandbox(id, if path.is_empty() { "." } else { path }.to_owned()),
            None => Self::Here(PathBuf::from(text)),
        })
    }
}

/// What was copied.
#[derive(Debug, Serialize)]
struct Copied {
    to: String,
    bytes: u64,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let copied = match (&args.from, &args.to) {
        (Side::Here(from), Side::Sandbox(id, to)) => {
            let remote = Remote { client: context.client().await?, id, user: &args.user };
            let step = context.ui.step(format!("Copying {}", from.display()));
            remote.put(from, to, args.recursive, step).await?
        }
        (Side::Sandbox(id, from), Side::Here(to)) => {
            let remote = Remote { client: context.client().await?, id, user: &args.user };
            let step = context.ui.step(format!("Copying {id}:{from}"));
            remote.get(from, to, args.recursive, step).await?
        }
        _ => return Err(CliError::usage("one of the two is in a sandbox: ID:PATH")),
    };
    context.ui.show(&copied, |c| format!("{} ({})", c.to, ui::size(c.bytes)));
    Ok(0)
}

/// The file system of a sandbox.
struct Remote<'a> {
    client: Client,
    id: &'a SandboxId,
    user: &'a str,
}

#[derive(Debug, Deserialize)]
struct Stat {
    entry: Entry,
}

#[derive(Debug, Deserialize)]
struct Entry {
    r#type: String,
}

impl Remote<'_> {
    async fn is_folder(&self, path: &str) -> Result<Option<bool>, CliError> {
        let call = format!("/v1/sandboxes/{}/agent/filesystem.Filesystem/Stat", self.id);
        match self.client.post::<_, Stat>(&call, &json!({ "path": path })).await {
            Ok(stat) => Ok(Some(stat.entry.r#type == "FILE_TYPE_DIRECTORY")),
            Err(CliError::Api { status: 404, body })
                if body.code == "not_found" && !body.error.contains(self.id.as_str()) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn tar(&self, path: &str) -> String {
        let (path, user) = (percent(path), percent(self.user));
        format!("/v1/sandboxes/{}/agent{PATH_TAR}?path={path}&username={user}", self.id)
    }

    async fn put(&self, from: &Path, to: &str, recursive: bool, mut step: Step) -> Result<Copied, CliError> {
        let failed = |e| CliError::io(format!("reading {}", from.display()), e);
        if std::fs::metadata(from).map_err(failed)?.is_dir() && !recursive {
            return Err(CliError::usage(format!("{} is a folder; add -r", from.display())));
        }
        let own = std::fs::canonicalize(from).map_err(failed)?;
        let own = own.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (folder, name) = if to.ends_with('/') || self.is_folder(to).await? == Some(true) {
            (to.to_owned(), own)
        } else {
            split(to)
        };
        let done = Arc::new(AtomicU64::new(0));
        let (body, packing) = archive::pack(from.to_owned(), name.clone(), Arc::clone(&done));
        let request = self.client.request(Method::POST, &self.tar(&folder));
        let request = request.header(header::CONTENT_TYPE, "application/x-tar").body(body);
        let sent = watched(&mut step, &done, self.client.send(request)).await;
        // What could not be read here shows at the far end as an upload that broke off only.
        match packing.await {
            Ok(Err(e)) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(failed(e)),
            _ => drop(sent?),
        }
        step.done("");
        let to = format!("{}:{}/{name}", self.id, folder.trim_end_matches('/'));
        Ok(Copied { to, bytes: done.load(Ordering::Relaxed) })
    }

    async fn get(&self, from: &str, to: &Path, recursive: bool, mut step: Step) -> Result<Copied, CliError> {
        if self.is_folder(from).await? == Some(true) && !recursive {
            return Err(CliError::usage(format!("{}:{from} is a folder; add -r", self.id)));
        }
        let request = self.client.request(Method::GET, &self.tar(from)).body(crate::client::empty());
        let answer = self.client.send(request).await?;
        let done = Arc::new(AtomicU64::new(0));
        let unpacking = archive::unpack(answer.into_body(), to.to_owned(), Arc::clone(&done));
        let placed = watched(&mut step, &done, unpacking).await?;
        step.done("");
        Ok(Copied { to: placed.display().to_string(), bytes: done.load(Ordering::Relaxed) })
    }
}

/// The folder of a path and its name in there.
fn split(path: &str) -> (String, String) {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", name)) => ("/".to_owned(), name.to_owned()),
        Some((folder, name)) => (folder.to_owned(), name.to_owned()),
        None => (".".to_owned(), path.to_owned()),
    }
}

/// Shows how far something is while it goes on.
async fn watched<T>(step: &mut Step, done: &AtomicU64, work: impl Future<Output = T>) -> T {
    let mut tick = tokio::time::interval(TICK);
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            ended = &mut work => return ended,
            _ = tick.tick() => step.at(done.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_and_paths_are_told_apart() {
        let side = |text: &str| text.parse::<Side>().unwrap();
        let id: SandboxId = "sb-6a2f0000-0001".parse().unwrap();
        assert_eq!(side("sb-6a2f0000-0001:/a:b"), Side::Sandbox(id.clone(), "/a:b".to_owned()));
        assert_eq!(side("sb-6a2f0000-0001:"), Side::Sandbox(id, ".".to_owned()));
        for here in ["a", "/a:b", "./sb-1:x", "C:/x", "sb-1"] {
            assert_eq!(side(here), Side::Here(PathBuf::from(here)));
        }
    }

    #[test]
    fn a_path_has_a_folder_and_a_name() {
        let both = |path| split(path);
        assert_eq!(both("/srv/app/"), ("/srv".to_owned(), "app".to_owned()));
        assert_eq!(both("/app"), ("/".to_owned(), "app".to_owned()));
        assert_eq!(both("app"), (".".to_owned(), "app".to_owned()));
    }
}
