//! Doing the steps of a Dockerfile, each in a fork of what the one before it made.

use std::fs::File;
use std::path::PathBuf;

use forkd_oci::Source;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::guest::{IMAGE_SETTINGS, ImageSettings, PATH_TAR};
use forkd_protocol::names::{ImageName, SandboxId, Tag};
use forkd_protocol::rest::{BranchMode, BranchRequest, ImageInfo, ImageOfSnapshot, SnapshotInfo};
use http::{Method, header};
use serde_json::json;
use tokio_util::io::ReaderStream;

use super::files::{Context, Packed};
use super::plan::{self, Deed, Step};
use super::read::read;
use super::words::Variables;
use super::{at_line, files};
use crate::artifacts;
use crate::client::{self, Client};
use crate::commands::{branch, fork, image, run};
use crate::error::CliError;
use crate::parse::percent;
use crate::process::{Ending, Event, Process, Spec};
use crate::ui::{self, Ui};
use crate::upload::blocking;

/// Lines of a command's output that are repeated where it fails.
const LAST_LINES: usize = 20;
/// Most bytes of the settings that an image has.
const MAX_SETTINGS: usize = 1 << 20;

/// What is to be built.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: ImageName,
    pub(crate) dockerfile: PathBuf,
    pub(crate) context: PathBuf,
    /// Values of ARGs.
    pub(crate) args: Variables,
    /// Do everything anew.
    pub(crate) no_cache: bool,
    /// For an image below that has yet to be fetched.
    pub(crate) insecure_registry: bool,
    pub(crate) size_mib: u64,
}

/// Builds. What was done before is not done again, and what is done is kept for the next time, also where a later step
/// fails.
pub(crate) async fn build(client: &Client, ui: &Ui, wanted: Wanted) -> Result<ImageInfo, CliError> {
    let failed = |e| CliError::io(format!("reading {}", wanted.dockerfile.display()), e);
    let text = std::fs::read_to_string(&wanted.dockerfile).map_err(failed)?;
    let all = read(&text)?;
    if let Some(name) = plan::unasked(&all, &wanted.args) {
        return Err(CliError::usage(format!("no ARG of the Dockerfile asks for {name}")));
    }
    let (line, base) = plan::base(&all, &wanted.args)?;
    let context = Context::open(&wanted.context)?;
    // Once with nothing below: what can be refused is refused before anything is fetched or run.
    let steps = plan::plan(&all, &wanted.args, ImageSettings::default())?.steps;
    blocking(move || steps.iter().try_for_each(|step| packed(&context, step).map(drop))).await??;

    let below = base_image(client, ui, &wanted, (line, &base)).await?;
    let tag = run::ensure_snapshot(client, ui, &below).await?;
    let builder = Builder { client, ui, no_cache: wanted.no_cache, context: Context::open(&wanted.context)? };
    let settings = builder.in_fork(&tag, async |id| builder.settings(id).await).await?;
    let plan = plan::plan(&all, &wanted.args, settings)?;
    builder.go(&wanted.name, tag, plan).await
}

/// The image that FROM names: one of the store, Debian, or a container's.
async fn base_image(
    client: &Client,
    ui: &Ui,
    wanted: &Wanted,
    (line, base): (usize, &str),
) -> Result<ImageName, CliError> {
    let images: Vec<ImageInfo> = client.get("/v1/images").await?;
    if let Some(there) = images.iter().find(|image| image.name == base) {
        return Ok(there.name.parse()?);
    }
    if let Some(suite) = debian_suite(base) {
        let name = format!("debian-{suite}");
        if !images.iter().any(|image| image.name == name) {
            let debian = image::debian(suite.to_owned(), Vec::new(), wanted.size_mib);
            artifacts::debian_image(client, ui, &name, debian).await?;
        }
        return Ok(name.parse()?);
    }
    let source: Source = base.parse().map_err(|e| at_line(line, format!("FROM {base}: {e}")))?;
    let size = wanted.size_mib << 20;
    let made = artifacts::container_image(client, ui, None, &source, wanted.insecure_registry, size).await?;
    Ok(made.name.parse()?)
}

/// `debian` and `debian:SUITE` are made of Debian's packages, whose signatures apt checks.
fn debian_suite(base: &str) -> Option<&str> {
    let suite = base.strip_prefix("debian")?;
    if suite.is_empty() { Some("bookworm") } else { suite.strip_prefix(':') }
}

/// The archive of a COPY; none of other steps. Blocks.
fn packed(context: &Context, step: &Step) -> Result<Option<Packed>, CliError> {
    let Deed::Copy { from, to, .. } = &step.what else { return Ok(None) };
    context.pack(from, to).map(Some).map_err(|why| at_line(step.line, format!("COPY: {why}")))
}

struct Builder<'a> {
    client: &'a Client,
    ui: &'a Ui,
    no_cache: bool,
    context: Context,
}

impl Builder<'_> {
    async fn go(&self, name: &ImageName, base: String, plan: plan::Plan) -> Result<ImageInfo, CliError> {
        let known: Vec<SnapshotInfo> = self.client.get("/v1/snapshots").await?;
        let there = |tag: &str| known.iter().find(|s| s.tag == tag && s.bootable);
        let below = there(&base).map(|s| s.id.clone()).unwrap_or_default();
        let (mut key, mut tag, mut again) = (key_of("base", &below, &()), base, self.no_cache);
        let count = plan.steps.len();
        for (n, step) in plan.steps.iter().enumerate() {
            let archive = packed(&self.context, step)?;
            key = key_of(&key, archive.as_ref().map_or("", |a| a.hash.as_str()), step);
            let next = tag_of(&key)?;
            let what = format!("[{}/{count}] line {}: {}", n + 1, step.line, describe(&step.what));
            // Where one was not done yet, those after it were not either.
            if !again && there(next.as_str()).is_some() {
                self.ui.note(&format!("{what}: as before"));
            } else {
                again = true;
                self.step(&tag, &next, (step, archive), &what).await?;
            }
            tag = next.to_string();
        }
        self.finish(name, &tag, &key, &plan.settings).await
    }

    /// One step, in a fork of `below`, kept as `tag`.
    async fn step(
        &self,
        below: &str,
        tag: &Tag,
        (step, archive): (&Step, Option<Packed>),
        what: &str,
    ) -> Result<(), CliError> {
        let shown = self.ui.step(what);
        self.in_fork(below, async |id| {
            match (&step.what, archive) {
                (Deed::Run { args, env, user, workdir }, _) => {
                    let spec = Spec {
                        args: args.clone(),
                        env: env.clone(),
                        cwd: Some(workdir.clone()),
                        user: user.clone(),
                        ..Spec::default()
                    };
                    self.run(id, &spec, &shown).await.map_err(|e| at_step(step, e))?;
                }
                (Deed::Folder(path), _) => self.make_folder(id, path).await.map_err(|e| at_step(step, e))?,
                (Deed::Copy { owner, .. }, Some(Packed { archive, folder, .. })) => {
                    self.put(id, owner, &folder, archive).await.map_err(|e| at_step(step, e))?;
                }
                (Deed::Copy { .. }, None) => {}
            }
            self.keep(id, tag).await
        })
        .await?;
        shown.done("");
        Ok(())
    }

    /// The image itself: how its processes are run is written into it.
    async fn finish(
        &self,
        name: &ImageName,
        tag: &str,
        key: &str,
        settings: &ImageSettings,
    ) -> Result<ImageInfo, CliError> {
        let key = key_of(key, "settings", settings);
        let origin = format!("dockerfile {}", &key[..32]);
        let images: Vec<ImageInfo> = self.client.get("/v1/images").await?;
        let same = |image: &ImageInfo| image.name == name.as_str() && image.origin == origin;
        if let Some(there) = images.into_iter().find(same).filter(|_| !self.no_cache) {
            return Ok(there);
        }
        let step = self.ui.step(format!("Making image {name}"));
        let last = tag_of(&key)?;
        self.in_fork(tag, async |id| {
            self.write_settings(id, settings).await?;
            self.keep(id, &last).await
        })
        .await?;
        let request = ImageOfSnapshot { name: name.to_string(), origin };
        let made = self.client.post(&format!("/v1/snapshots/{last}/image"), &request).await;
        // Nothing lies on it.
        let removed = self.client.delete(&format!("/v1/snapshots/{last}")).await;
        let made = made?;
        removed?;
        step.done("");
        Ok(made)
    }

    /// Does something in a fork of a snapshot, which is ended whatever comes of it.
    async fn in_fork<T>(
        &self,
        tag: &str,
        work: impl AsyncFnOnce(&SandboxId) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let children = fork::create(self.client, &fork::plainly(tag, 1)).await?;
        let id: Option<SandboxId> = children.first().and_then(|child| child.id.parse().ok());
        let id =
            id.ok_or_else(|| CliError::local(ErrorClass::Internal, "the controller named no sandbox"))?;
        let worked = tokio::select! {
            worked = work(&id) => worked,
            _ = crate::commands::interrupted() => {
                Err(CliError::local(ErrorClass::Internal, "it was interrupted"))
            }
        };
        let ended = fork::end_all(self.client, &children).await;
        let worked = worked?;
        ended.map(|_| worked)
    }

    /// Runs a command to its end; an error, with the end of what it said, where it fails.
    async fn run(&self, id: &SandboxId, spec: &Spec, shown: &ui::Step) -> Result<(), CliError> {
        let mut process = Process::start(self.client, id, spec).await?;
        let mut said = Said::default();
        while let Some(event) = process.next().await? {
            if let Event::Stdout(bytes) | Event::Stderr(bytes) = event {
                said.add(&bytes, |line| shown.note(&ui::plain(line)));
            }
        }
        match process.ending()? {
            Ending::Exited(0) => Ok(()),
            Ending::Exited(code) => Err(said.error(&format!("it ended with {code}"))),
            Ending::Signalled(signal) => Err(said.error(&format!("signal {signal} ended it"))),
            Ending::TimedOut => Err(said.error("it was killed at its timeout")),
        }
    }

    async fn make_folder(&self, id: &SandboxId, path: &str) -> Result<(), CliError> {
        let call = format!("/v1/sandboxes/{id}/agent/filesystem.Filesystem/MakeDir");
        let request =
            self.client.request(Method::POST, &call).header(header::CONTENT_TYPE, "application/json");
        let request = request.header("x-agent-authorization", "Basic cm9vdDo=");
        let body = json!({ "path": path }).to_string().into_bytes();
        match self.client.send(request.body(client::full(body))).await {
            Err(CliError::Api { body, .. }) if body.code == "already_exists" => Ok(()),
            other => other.map(drop),
        }
    }

    async fn put(&self, id: &SandboxId, owner: &str, folder: &str, archive: File) -> Result<(), CliError> {
        let path = format!(
            "/v1/sandboxes/{id}/agent{PATH_TAR}?path={}&username={}",
            percent(folder),
            percent(owner)
        );
        let pieces = ReaderStream::with_capacity(tokio::fs::File::from_std(archive), 256 << 10);
        let pieces = futures::StreamExt::map(pieces, |piece| piece.map_err(Into::into));
        let request = self.client.request(Method::POST, &path);
        let request =
            request.header(header::CONTENT_TYPE, "application/x-tar").body(client::streamed(pieces));
        self.client.send(request).await.map(drop)
    }

    async fn keep(&self, id: &SandboxId, tag: &Tag) -> Result<(), CliError> {
        if self.no_cache {
            // One of this name is of an earlier build; children keep what they need of it.
            match self.client.delete(&format!("/v1/snapshots/{tag}?force=true")).await {
                Err(e) if e.class() == Some(ErrorClass::NotFound) => {}
                other => other?,
            }
        }
        let request = BranchRequest {
            tag: Some(tag.to_string()),
            mode: Some(BranchMode::Diff),
            ..BranchRequest::default()
        };
        branch::branch(self.client, id, &request).await.map(drop)
    }

    /// How processes of the image below are run.
    async fn settings(&self, id: &SandboxId) -> Result<ImageSettings, CliError> {
        let path = format!("/v1/sandboxes/{id}/agent/files?path={}&username=root", percent(IMAGE_SETTINGS));
        let bytes = match self.client.bytes(&path).await {
            Err(e) if e.class() == Some(ErrorClass::NotFound) => return Ok(ImageSettings::default()),
            bytes => bytes?,
        };
        let read =
            Some(&bytes).filter(|bytes| bytes.len() <= MAX_SETTINGS).map(|b| serde_json::from_slice(b));
        let what = format!("{IMAGE_SETTINGS} of the image below is not understood");
        match read {
            Some(Ok(settings)) => Ok(settings),
            Some(Err(e)) => Err(CliError::caused(ErrorClass::GuestFault, what, e)),
            None => Err(CliError::local(ErrorClass::GuestFault, what)),
        }
    }

    async fn write_settings(&self, id: &SandboxId, settings: &ImageSettings) -> Result<(), CliError> {
        let failed = |e| CliError::caused(ErrorClass::Internal, "writing the settings of the image", e);
        let text = serde_json::to_vec_pretty(settings).map_err(failed)?;
        let (folder, name) = IMAGE_SETTINGS.rsplit_once('/').unwrap_or(("/", IMAGE_SETTINGS));
        let archive = blocking({
            let name = name.to_owned();
            move || files::one(&name, &text)
        });
        let archive = archive.await?.map_err(|e| CliError::io("packing the settings of the image", e))?;
        self.put(id, "root", folder, archive).await
    }
}

/// What a command said last.
#[derive(Debug, Default)]
struct Said {
    lines: std::collections::VecDeque<String>,
    partial: Vec<u8>,
}

impl Said {
    /// Longest line that is repeated.
    const LONGEST: usize = 4096;

    fn add(&mut self, bytes: &[u8], mut tell: impl FnMut(&str)) {
        for &byte in bytes {
            if byte != b'\n' {
                if self.partial.len() < Self::LONGEST {
                    self.partial.push(byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
            tell(&line);
            self.lines.push_back(line);
            if self.lines.len() > LAST_LINES {
                self.lines.pop_front();
            }
        }
    }

    fn error(mut self, how: &str) -> CliError {
        self.add(b"\n", |_| {});
        let said = self.lines.iter().map(|line| ui::plain(line)).collect::<Vec<_>>().join("\n");
        CliError::local(ErrorClass::GuestFault, format!("{how}\n{}", said.trim()))
    }
}

/// A failure with the line that it is of.
fn at_step(step: &Step, e: CliError) -> CliError {
    let class = e.class().unwrap_or(ErrorClass::Internal);
    let what = describe(&step.what);
    CliError::local(class, format!("line {} of the Dockerfile: {what}: {e}", step.line))
}

fn describe(deed: &Deed) -> String {
    let text = match deed {
        Deed::Run { args, .. } => match &args[..] {
            [_, flag, line] if flag == "-c" => format!("RUN {line}"),
            args => format!("RUN {}", args.join(" ")),
        },
        Deed::Copy { from, to, .. } => format!("COPY {} {to}", from.join(" ")),
        Deed::Folder(path) => format!("WORKDIR {path}"),
    };
    let short: String = text.chars().take(72).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

/// Everything that decides what a step makes: what lies below, its files, and what it says.
fn key_of(below: &str, files: &str, says: &impl serde::Serialize) -> String {
    let says = serde_json::to_string(says).unwrap_or_default();
    blake3::hash(format!("forkd build 1\n{below}\n{files}\n{says}").as_bytes()).to_hex().to_string()
}

fn tag_of(key: &str) -> Result<Tag, CliError> {
    Ok(format!("build-{}", &key[..40]).parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_of_all_that_goes_into_a_step_and_of_nothing_else() {
        let step = |line, text: &str| Step { line, what: Deed::Folder(text.to_owned()) };
        let key = key_of("below", "", &step(1, "/a"));
        assert_eq!(key, key_of("below", "", &step(9, "/a")), "moved to another line");
        for other in [
            key_of("other", "", &step(1, "/a")),
            key_of("below", "x", &step(1, "/a")),
            key_of("below", "", &step(1, "/b")),
        ] {
            assert_ne!(key, other);
        }
        assert!(tag_of(&key).unwrap().as_str().starts_with("build-"));
    }

    #[test]
    fn debian_is_made_of_packages_and_others_come_from_registries() {
        assert_eq!(debian_suite("debian"), Some("bookworm"));
        assert_eq!(debian_suite("debian:trixie"), Some("trixie"));
        assert_eq!(debian_suite("debian-slim"), None);
        assert_eq!(debian_suite("docker.io/library/debian"), None);
    }

    #[test]
    fn the_end_of_what_a_command_said_is_repeated() {
        let mut said = Said::default();
        let mut told = 0;
        for n in 0..50 {
            said.add(format!("line {n}\n").as_bytes(), |_| told += 1);
        }
        said.add(b"no end", |_| {});
        let text = said.error("it ended with 3").to_string();
        assert!(text.starts_with("it ended with 3\n") && text.ends_with("line 49\nno end"), "{text}");
        assert!(!text.contains("line 20\n") && told == 50);
    }
}
