//! Taking images and kernels in.

use std::io::{self, Read, Write};

use forkd_protocol::names::{ImageName, KernelName};
use forkd_protocol::rest::{ImageInfo, KernelInfo};
use forkd_store::{KernelDraft, Store, StoreError};

use crate::error::{EngineError, RequestError};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// Takes in a raw ext4 file system; blocks.
pub(crate) fn take_image(
    store: &Store,
    name: &ImageName,
    origin: &str,
    mut from: impl Read,
) -> Result<ImageInfo, EngineError> {
    let mut draft = store.begin_image(name, origin)?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(draft.publish()?.info),
            Ok(n) => draft.write_all(&chunk[..n]).map_err(|e| store_error(e, store))?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(RequestError::Upload(e).into()),
        }
    }
}

/// Takes in a tar of `vmlinuz` and `modules.cpio`; blocks. Everything else in it is refused.
pub(crate) fn take_kernel(
    store: &Store,
    name: &KernelName,
    from: impl Read,
) -> Result<KernelInfo, EngineError> {
    let mut draft = store.begin_kernel(name)?;
    let (mut vmlinuz, mut modules) = (false, false);
    for entry in tar::Archive::new(from).entries().map_err(RequestError::Upload)? {
        let entry = entry.map_err(RequestError::Upload)?;
        let path = entry.path_bytes().into_owned();
        match path.strip_prefix(b"./").unwrap_or(&path) {
            b"vmlinuz" => take_part(&mut draft, entry, &mut vmlinuz, KernelDraft::write_vmlinuz)?,
            b"modules.cpio" => take_part(&mut draft, entry, &mut modules, KernelDraft::write_modules)?,
            other => return Err(refused(format!("it holds {:?}", String::from_utf8_lossy(other)))),
        }
    }
    match (vmlinuz, modules) {
        (true, true) => Ok(draft.publish()?.info),
        (false, _) => Err(refused("vmlinuz is missing".to_owned())),
        (_, false) => Err(refused("modules.cpio is missing".to_owned())),
    }
}

fn take_part<'a, R: Read>(
    draft: &mut KernelDraft,
    entry: tar::Entry<'a, R>,
    seen: &mut bool,
    write: impl FnOnce(&mut KernelDraft, tar::Entry<'a, R>) -> Result<(), StoreError>,
) -> Result<(), EngineError> {
    if !entry.header().entry_type().is_file() {
        return Err(refused("an entry is no plain file".to_owned()));
    }
    if std::mem::replace(seen, true) {
        return Err(refused("an entry comes twice".to_owned()));
    }
    Ok(write(draft, entry)?)
}

fn refused(why: String) -> EngineError {
    RequestError::KernelArchive(why).into()
}

/// A draft is a writer, so its own error comes wrapped in an I/O error.
fn store_error(e: io::Error, store: &Store) -> EngineError {
    match e.downcast::<StoreError>() {
        Ok(inner) => inner.into(),
        Err(source) => {
            StoreError::Io { what: "write an image in", path: store.root().to_owned(), source }.into()
        }
    }
}
