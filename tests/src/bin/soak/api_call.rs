//! Calls to the API server by the soak itself, on a machine that may have too much to do.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::{sleep, timeout};

/// How long a control plane may be without an answer before the run ends.
const PATIENCE: Duration = Duration::from_mins(5);
/// How long one try may take.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(1);
/// A write that takes longer may have kept an agent from renewing its Lease: the agent gives up after 10 s.
pub(crate) const SLOW: Duration = Duration::from_secs(3);

/// Calls until the API server has an answer, and notes whether it was slow.
#[derive(Debug)]
pub(crate) struct ApiCalls {
    pause: Duration,
    slow: Cell<bool>,
}

impl Default for ApiCalls {
    fn default() -> Self {
        Self { pause: PAUSE, slow: Cell::new(false) }
    }
}

impl ApiCalls {
    /// Whether a call was slow, or had no answer, since this was last asked.
    pub(crate) fn were_slow(&self) -> bool {
        self.slow.take()
    }

    /// Calls again after an error that says nothing of the object. The call may have had its effect all the same.
    pub(crate) async fn call<T>(
        &self,
        what: &str,
        call: impl AsyncFn() -> Result<T, kube::Error>,
    ) -> Result<Result<T, kube::Error>> {
        let begun = Instant::now();
        loop {
            let tried = Instant::now();
            let answer = timeout(LIMIT, call()).await;
            if tried.elapsed() > SLOW {
                self.slow.set(true);
            }
            let why = match answer {
                Ok(Err(error)) if is_transient(&error) => error.to_string(),
                Ok(answer) => return Ok(answer),
                Err(_) => format!("no answer within {LIMIT:?}"),
            };
            self.slow.set(true);
            if begun.elapsed() > PATIENCE {
                return Err(anyhow::Error::msg(why)).with_context(|| format!("the control plane: {what}"));
            }
            sleep(self.pause).await;
        }
    }
}

/// Whether the error is of the connection, or of an API server that has too much to do: etcd's time-outs are 500.
fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn error(code: u16) -> kube::Error {
        kube::Error::Api(Status { code, ..Status::failure("words", "reason") }.boxed())
    }

    #[tokio::test]
    async fn an_overloaded_control_plane_is_asked_again_and_noted() {
        let calls = ApiCalls { pause: Duration::ZERO, ..ApiCalls::default() };
        let tries = Cell::new(0);
        let answer = calls.call("a Pod", async || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(error(500)) } else { Ok(7) }
        });
        assert_eq!(answer.await.unwrap().unwrap(), 7);
        assert!(calls.were_slow());
        assert!(!calls.were_slow(), "it is told once");
    }

    #[tokio::test]
    async fn an_answer_about_the_object_is_the_answer() {
        let calls = ApiCalls::default();
        for code in [403, 404, 409, 422] {
            assert!(calls.call("a Pod", async || Err::<(), _>(error(code))).await.unwrap().is_err());
        }
        assert!(!calls.were_slow());
    }
}
