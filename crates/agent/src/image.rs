//! What the image says about running its processes.

use forkd_protocol::guest::{IMAGE_SETTINGS, ImageSettings};

use crate::log;

/// Larger settings are no settings.
const MAX_BYTES: u64 = 1 << 20;

/// The settings that a container image brought along; all empty for any other image.
pub(crate) fn settings() -> ImageSettings {
    let read = || -> std::io::Result<ImageSettings> {
        let file = std::io::Read::take(std::fs::File::open(IMAGE_SETTINGS)?, MAX_BYTES);
        Ok(serde_json::from_reader(std::io::BufReader::new(file))?)
    };
    read().unwrap_or_else(|e| {
        if e.kind() != std::io::ErrorKind::NotFound {
            log::warn(format_args!("{IMAGE_SETTINGS} is passed over: {e}"));
        }
        ImageSettings::default()
    })
}
