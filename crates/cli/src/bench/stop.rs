//! Being asked to stop in the middle: what was measured is shown, and nothing is left running.

use std::future::Future;

use forkd_protocol::error::ErrorClass;
use tokio::sync::watch;

use crate::error::CliError;

/// Whether to stop. Clones mean the same.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    code: watch::Receiver<Option<u8>>,
}

impl Stop {
    /// Stops when `signal` resolves, which gives the exit code.
    pub(crate) fn when(signal: impl Future<Output = Result<u8, CliError>> + Send + 'static) -> Self {
        let (tell, code) = watch::channel(None);
        tokio::spawn(async move {
            if let Ok(code) = signal.await {
                tell.send_replace(Some(code));
            }
        });
        Self { code }
    }

    /// The exit code where it was asked to stop.
    pub(crate) fn code(&self) -> Option<u8> {
        *self.code.borrow()
    }

    /// An error where it was asked to stop.
    pub(super) fn check(&self) -> Result<(), CliError> {
        if self.code().is_some() { Err(stopped()) } else { Ok(()) }
    }

    /// Does `work` unless it is asked to stop.
    pub(super) async fn bound<T>(
        &self,
        work: impl Future<Output = Result<T, CliError>>,
    ) -> Result<T, CliError> {
        let mut code = self.code.clone();
        let asked = async {
            if code.wait_for(Option::is_some).await.is_err() {
                // Nobody listens to signals any more, so none will come.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = asked => Err(stopped()),
            done = work => done,
        }
    }
}

fn stopped() -> CliError {
    CliError::local(ErrorClass::Internal, "it was interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_goes_on_until_it_is_asked_to_stop() {
        let never = Stop::when(std::future::pending());
        assert_eq!(never.bound(async { Ok(3) }).await.unwrap(), 3);
        assert!(never.check().is_ok() && never.code().is_none());
        let now = Stop::when(async { Ok(130) });
        assert!(now.bound(std::future::pending::<Result<(), CliError>>()).await.is_err());
        assert!(now.check().is_err());
        assert_eq!(now.code(), Some(130));
        let deaf = Stop::when(async { Err(CliError::usage("no signals")) });
        assert_eq!(deaf.bound(async { Ok(4) }).await.unwrap(), 4);
    }
}
