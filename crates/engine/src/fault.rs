//! Steps at which crash tests kill a process. Programs contain nothing of this.

/// Marks a step: `fault::at!("engine::operation::step")`. Each name stands in one place.
macro_rules! at {
    ($point:literal) => {
        #[cfg(test)]
        forkd_testkit::fault::reached($point);
    };
}
pub(crate) use at;
