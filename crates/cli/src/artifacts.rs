//! Kernels and images: made here, where the command runs, then handed to the controller.

use std::path::PathBuf;

use forkd_oci::{ContainerImage, Fetch, OciError, Source};
use forkd_protocol::rest::{ImageInfo, KernelInfo};
use forkd_store::make::{
    self, DebianImage, FolderImage, KernelSource, LayeredImage, MadeImage, MadeKernel, MakeError, Progress,
    TarImage, cache_dir,
};

use crate::client::Client;
use crate::error::CliError;
use crate::parse;
use crate::ui::Ui;
use crate::upload::{self, blocking};

impl From<MakeError> for CliError {
    fn from(e: MakeError) -> Self {
        let (class, message) = (e.class(), e.to_string());
        let source = std::error::Error::source(&e).map(|s| s.to_string().into());
        Self::Local { class, message, source, hint: None }
    }
}

impl From<OciError> for CliError {
    fn from(e: OciError) -> Self {
        let (class, message) = (e.class(), e.to_string());
        let source = std::error::Error::source(&e).map(|s| s.to_string().into());
        Self::Local { class, message, source, hint: None }
    }
}

/// Makes sure that the controller has a kernel: fetches Debian's where it has none.
pub(crate) async fn ensure_kernel(client: &Client, ui: &Ui) -> Result<(), CliError> {
    let kernels: Vec<KernelInfo> = client.get("/v1/kernels").await?;
    if kernels.is_empty() {
        fetch_kernel(client, ui, KernelSource::default()).await?;
    }
    Ok(())
}

/// Fetches Debian's cloud kernel and hands it over.
pub(crate) async fn fetch_kernel(
    client: &Client,
    ui: &Ui,
    source: KernelSource,
) -> Result<KernelInfo, CliError> {
    let made: MadeKernel = making(ui, "Fetching Debian's cloud kernel", move |progress| {
        make::fetch_kernel(source, &cache_dir(), progress)
    })
    .await?;
    upload::kernel(client, ui, &made).await
}

/// Debian's cloud kernel as a file here, fetched once.
pub(crate) async fn kernel_image(ui: &Ui) -> Result<PathBuf, CliError> {
    let made: MadeKernel = making(ui, "Fetching Debian's cloud kernel", move |progress| {
        make::fetch_kernel(KernelSource::default(), &cache_dir(), progress)
    })
    .await?;
    Ok(made.vmlinuz)
}

/// Takes a kernel from a file, with or without a folder of modules, and hands it over.
pub(crate) async fn kernel_file(
    client: &Client,
    ui: &Ui,
    file: PathBuf,
    modules: Option<PathBuf>,
) -> Result<KernelInfo, CliError> {
    let made: MadeKernel = making(ui, "Reading the kernel", move |_| {
        make::kernel_from_file(&file, modules.as_deref(), &cache_dir())
    })
    .await?;
    upload::kernel(client, ui, &made).await
}

/// Makes an image from Debian's packages and hands it over.
pub(crate) async fn debian_image(
    client: &Client,
    ui: &Ui,
    name: &str,
    wanted: DebianImage,
) -> Result<ImageInfo, CliError> {
    let made: MadeImage =
        making(ui, format!("Making image {name}"), move |progress| make::debian_image(&wanted, progress))
            .await?;
    upload::image(client, ui, name, &made).await
}

/// Makes an image from a tar archive and hands it over.
pub(crate) async fn tar_image(
    client: &Client,
    ui: &Ui,
    name: &str,
    tar: PathBuf,
    size: u64,
) -> Result<ImageInfo, CliError> {
    let folder = tempfile::tempdir().map_err(|e| CliError::io("making a temporary folder", e))?;
    let wanted = TarImage { tar, size_bytes: size, out: folder.path().join("image.ext4") };
    let made: MadeImage =
        making(ui, format!("Unpacking image {name}"), move |progress| make::import_tar(&wanted, progress))
            .await?;
    upload::image(client, ui, name, &made).await
}

/// Makes an image of a folder and hands it over.
pub(crate) async fn folder_image(
    client: &Client,
    ui: &Ui,
    name: &str,
    folder: PathBuf,
    size: u64,
) -> Result<ImageInfo, CliError> {
    let scratch = tempfile::tempdir().map_err(|e| CliError::io("making a temporary folder", e))?;
    let wanted = FolderImage { folder, size_bytes: size, out: scratch.path().join("image.ext4") };
    let made: MadeImage =
        making(ui, format!("Making image {name}"), move |progress| make::folder_image(&wanted, progress))
            .await?;
    upload::image(client, ui, name, &made).await
}

/// Gets a container image, makes an image of it and hands it over. Without a name it gets one of its own, and is
/// not made again where the controller has it.
pub(crate) async fn container_image(
    client: &Client,
    ui: &Ui,
    name: Option<&str>,
    source: &Source,
    insecure: bool,
    size: u64,
) -> Result<ImageInfo, CliError> {
    let container = fetch_container(ui, source, insecure).await?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => parse::container_name(&source.to_string(), &container.origin),
    };
    let images: Vec<ImageInfo> = client.get("/v1/images").await?;
    if let Some(there) = images.into_iter().find(|i| i.name == name && i.origin == container.origin) {
        return Ok(there);
    }
    let scratch =
        tempfile::tempdir_in(cache_dir()).map_err(|e| CliError::io("making a temporary folder", e))?;
    let wanted = LayeredImage {
        layers: container.layers,
        settings: container.settings,
        origin: container.origin,
        size_bytes: size,
        out: scratch.path().join("image.ext4"),
    };
    let made: MadeImage =
        making(ui, format!("Making image {name}"), move |progress| make::layered_image(&wanted, progress))
            .await?;
    upload::image(client, ui, &name, &made).await
}

async fn fetch_container(ui: &Ui, source: &Source, insecure: bool) -> Result<ContainerImage, CliError> {
    let step = ui.step(format!("Getting {source}"));
    let cache = cache_dir();
    let credentials = docker_config();
    let how = Fetch { cache: &cache, insecure, credentials: credentials.as_deref() };
    let container = forkd_oci::fetch(source, &how, &mut |line| step.note(&crate::ui::plain(line))).await?;
    step.done("");
    Ok(container)
}

/// Where `docker login` keeps credentials: in `DOCKER_CONFIG`, else in `~/.docker`.
fn docker_config() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let of_home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    folder.or_else(of_home).map(|folder| folder.join("config.json"))
}

async fn making<T, F>(ui: &Ui, what: impl Into<String>, work: F) -> Result<T, CliError>
where
    T: Send + 'static,
    F: FnOnce(Progress<'_>) -> Result<T, MakeError> + Send + 'static,
{
    let step = ui.step(what);
    let (made, step) = blocking(move || {
        let made = work(&mut |line| step.note(&crate::ui::plain(line)));
        (made, step)
    })
    .await?;
    let made = made?;
    step.done("");
    Ok(made)
}
