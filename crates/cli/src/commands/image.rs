//! `forkd image`.

use std::path::{Path, PathBuf};

use forkd_oci::Source;
use forkd_protocol::names::ImageName;
use forkd_protocol::rest::ImageInfo;
use forkd_store::make::{DebianImage, cache_dir};

use super::removal;
use crate::artifacts;
use crate::client::Client;
use crate::context::Context;
use crate::dockerfile::{self, Wanted};
use crate::error::CliError;
use crate::parse::{self, KeyValue};
use crate::ui::{self, Ui};

/// Root file systems.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make an image from Debian's packages, a container image, a Dockerfile, an archive or a folder
    #[command(
        after_help = "Example:\n  forkd image build py --debian bookworm --packages python3-minimal,python3-numpy\n  \
                      forkd image build web --from-oci ghcr.io/owner/web:1.2\n  \
                      forkd image build app --dockerfile ./Dockerfile\n  \
                      docker save app > app.tar && forkd image build app --from-oci ./app.tar"
    )]
    Build(Box<Build>),
    /// Make an image from a tar archive of a root file system
    #[command(
        after_help = "Example:\n  docker export CONTAINER > root.tar && forkd image import app root.tar"
    )]
    Import(Import),
    /// List images
    #[command(after_help = "Example:\n  forkd image ls")]
    Ls,
    /// Remove images; snapshots made from them keep what they need
    #[command(after_help = "Example:\n  forkd image rm py")]
    Rm(Remove),
}

#[derive(Debug, clap::Args)]
struct Build {
    /// Name of the image
    name: ImageName,
    /// Release of Debian
    #[arg(long, value_name = "SUITE", default_value = "bookworm")]
    debian: String,
    /// Packages beside the essential ones, separated by commas
    #[arg(long, value_name = "PACKAGES", value_delimiter = ',')]
    packages: Vec<String>,
    /// A container image in the place of packages: NAME[:TAG|@DIGEST] in a registry, or the path of an archive or
    /// image layout (./FILE.tar)
    #[arg(long, value_name = "REF", group = "other", conflicts_with_all = ["debian", "packages"])]
    from_oci: Option<Source>,
    /// A tar archive of a root file system, plain or compressed
    #[arg(long, value_name = "FILE", group = "other", conflicts_with_all = ["debian", "packages"])]
    from_tar: Option<PathBuf>,
    /// A folder that is a root file system
    #[arg(long, value_name = "FOLDER", group = "other", conflicts_with_all = ["debian", "packages"])]
    from_dir: Option<PathBuf>,
    /// Instructions in the form of Docker, each done in a fork of what the one before it made, and not again where it
    /// was done before
    #[arg(long, value_name = "FILE", group = "other", conflicts_with_all = ["debian", "packages"])]
    dockerfile: Option<PathBuf>,
    /// Folder that COPY copies from (default: where the Dockerfile lies)
    #[arg(long, value_name = "DIR", requires = "dockerfile")]
    context: Option<PathBuf>,
    /// Value of an ARG
    #[arg(long = "build-arg", value_name = "NAME=VALUE", requires = "dockerfile", value_parser = parse::key_value)]
    build_args: Vec<KeyValue>,
    /// Do everything again
    #[arg(long, requires = "dockerfile")]
    no_cache: bool,
    /// Speak plain HTTP with the registry
    #[arg(long)]
    insecure_registry: bool,
    /// Size of the file system
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_SIZE_MIB, value_parser = size_range())]
    size: u64,
}

#[derive(Debug, clap::Args)]
struct Import {
    /// Name of the image
    name: ImageName,
    /// The archive; plain, or compressed with gzip, xz or zstd
    file: PathBuf,
    /// Size of the file system
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_SIZE_MIB, value_parser = size_range())]
    size: u64,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Images
    #[arg(required = true)]
    names: Vec<ImageName>,
}

/// Size of a file system where nobody says otherwise; the file is sparse.
pub(crate) const DEFAULT_SIZE_MIB: u64 = 2048;

pub(super) fn size_range() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(64..=65_536)
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    match args.verb {
        Verb::Build(build) => {
            let client = context.client().await?;
            let made = make(&client, &context.ui, *build).await?;
            context.ui.show(&made, |image| render(std::slice::from_ref(image), ui::now_unix()));
        }
        Verb::Import(import) => {
            let client = context.client().await?;
            let (name, size) = (import.name.as_str(), import.size << 20);
            let made = artifacts::tar_image(&client, &context.ui, name, import.file, size).await?;
            context.ui.show(&made, |image| render(std::slice::from_ref(image), ui::now_unix()));
        }
        Verb::Ls => {
            let images: Vec<ImageInfo> = context.client().await?.get("/v1/images").await?;
            context.ui.show(&images, |all| render(all, ui::now_unix()));
        }
        Verb::Rm(remove) => {
            let client = context.client().await?;
            return removal::remove(&client, &context.ui, "/v1/images", &remove.names, "").await;
        }
    }
    Ok(0)
}

/// Makes what was asked for, and hands it over.
async fn make(client: &Client, ui: &Ui, build: Build) -> Result<ImageInfo, CliError> {
    let (name, size) = (build.name.as_str(), build.size << 20);
    if let Some(source) = &build.from_oci {
        return artifacts::container_image(client, ui, Some(name), source, build.insecure_registry, size)
            .await;
    }
    if let Some(file) = build.dockerfile {
        let beside =
            || file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
        let wanted = Wanted {
            name: build.name,
            context: build.context.unwrap_or_else(beside),
            args: build.build_args.into_iter().map(KeyValue::into_pair).collect(),
            no_cache: build.no_cache,
            insecure_registry: build.insecure_registry,
            size_mib: build.size,
            dockerfile: file,
        };
        return dockerfile::build(client, ui, wanted).await;
    }
    if let Some(tar) = build.from_tar {
        return artifacts::tar_image(client, ui, name, tar, size).await;
    }
    if let Some(folder) = build.from_dir {
        return artifacts::folder_image(client, ui, name, folder, size).await;
    }
    artifacts::debian_image(client, ui, name, debian(build.debian, build.packages, build.size)).await
}

/// An image of Debian's packages.
pub(crate) fn debian(suite: String, packages: Vec<String>, size_mib: u64) -> DebianImage {
    DebianImage { suite, packages, size_bytes: size_mib << 20, cache: cache_dir() }
}

fn render(all: &[ImageInfo], now: u64) -> String {
    if all.is_empty() {
        return "no images; make one: forkd image build py --packages python3-minimal".to_owned();
    }
    ui::table(
        &["NAME", "SIZE", "STORED", "AGE", "ORIGIN"],
        all.iter().map(|i| {
            [
                i.name.clone(),
                ui::size(i.size_bytes),
                ui::size(i.physical_bytes),
                ui::age(i.created_at_unix, now),
                i.origin.clone(),
            ]
        }),
    )
}
