//! Images: raw ext4 files, kept by content, named by rows.

use std::io::{self, Write};

use forkd_protocol::names::ImageName;

use crate::error::StoreError;
use crate::records::ImageRecord;
use crate::store::Store;

impl Store {
    /// All images, by name.
    pub fn images(&self) -> Result<Vec<ImageRecord>, StoreError> {
        todo!()
    }

    /// One image.
    pub fn image(&self, name: &ImageName) -> Result<ImageRecord, StoreError> {
        let _ = name;
        todo!()
    }

    /// Starts taking in an image. `origin` says how it was made.
    pub fn begin_image(&self, name: &ImageName, origin: &str) -> Result<ImageDraft, StoreError> {
        let _ = (name, origin);
        todo!()
    }

    /// Forgets an image. Its file stays as long as a snapshot needs it.
    pub fn remove_image(&self, name: &ImageName) -> Result<(), StoreError> {
        let _ = name;
        todo!()
    }
}

/// The largest image.
pub(crate) const MAX_IMAGE_BYTES: u64 = 64 << 30;

/// An image on its way in: write the raw file system, then publish. Dropping it leaves nothing.
#[derive(Debug)]
pub struct ImageDraft {}

impl ImageDraft {
    /// Makes the image visible under its name, replacing what had it.
    pub fn publish(self) -> Result<ImageRecord, StoreError> {
        todo!()
    }
}

impl Write for ImageDraft {
    fn write(&mut self, _buf: &[u8]) -> io::Result<usize> {
        todo!()
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
