//! Becoming someone else: what a restored guest does before its workload runs.

mod hooks;
mod names;
mod steps;
mod tcp;

use std::cell::RefCell;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forkd_protocol::guest::{Continuation, Identified, Identity};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::agent::{Agent, Known};

pub(crate) use names::{prepare_boot_id, with_own_name};
pub(crate) use steps::write_if_changed;

/// Least entropy that a child is given.
const ENTROPY_MIN: usize = 64;
/// Bounds a step that waits for the kernel or the interpreter; hooks have a bound each.
const STEP_BOUND: Duration = Duration::from_secs(30);

/// One change of identity under way.
#[derive(Debug)]
struct Change<'a> {
    agent: &'a Agent,
    identity: &'a Identity,
    entropy: Vec<u8>,
    /// Nanoseconds since the Unix epoch, when the request was sent.
    realtime_ns: u64,
    /// When the request came in, for the clock.
    arrived: Instant,
    /// What each interpreter will tell once it has reseeded itself.
    reseeded: RefCell<Vec<oneshot::Receiver<Result<(), String>>>>,
}

/// Why the guest is not who it was told to be. Such a guest must not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    /// The request makes no sense; nothing was changed.
    #[error("{0}")]
    Request(&'static str),
    /// A step of the agent's failed.
    #[error("identity step '{step}': {message}")]
    Step { step: &'static str, message: String },
    /// A hook of the user's failed.
    #[error("after-fork step '{step}': {message}")]
    Hook { step: &'static str, message: String },
}

/// Takes on an identity: every step in order, the workload running at the end. The identity that the guest has
/// already is answered as before, without doing anything again.
pub(crate) async fn assume(
    agent: &Agent,
    identity: Identity,
    arrived: Instant,
) -> Result<Identified, IdentityError> {
    let entropy = check(&identity)?;
    let mut known = agent.identity.lock().await;
    if let Some(known) = known.as_ref().filter(|known| known.identity.id == identity.id) {
        return Ok(known.answer.clone());
    }
    let realtime_ns = identity.realtime_ns;
    let reseeded = RefCell::default();
    let change = Change { agent, identity: &identity, entropy, realtime_ns, arrived, reseeded };
    let answer = carry_out(&change, steps::STEPS).await?;
    // Their values are in the files, and nowhere else.
    let identity = Identity { secrets: Vec::new(), ..identity };
    *known = Some(Known { identity, answer: answer.clone() });
    Ok(answer)
}

/// Goes on as who it was, up to the thaw.
pub(crate) async fn go_on(
    agent: &Agent,
    continuation: Continuation,
    arrived: Instant,
) -> Result<Identified, IdentityError> {
    let Continuation { entropy_base64, realtime_ns } = continuation;
    let entropy = enough_entropy(&entropy_base64)?;
    let known = agent.identity.lock().await;
    if !agent.spawner.is_frozen() {
        return Err(IdentityError::Request("the workload runs: this guest was not paused"));
    }
    let Some(Known { identity, .. }) = known.as_ref() else {
        return Err(IdentityError::Request("this guest has no identity to go on with"));
    };
    let change = Change { agent, identity, entropy, realtime_ns, arrived, reseeded: RefCell::default() };
    carry_out(&change, steps::CONTINUE).await
}

async fn carry_out(change: &Change<'_>, steps: &[steps::Step]) -> Result<Identified, IdentityError> {
    let mut answer = Identified { steps: Vec::new() };
    for step in steps {
        if step.machine && !change.agent.owns_machine {
            continue;
        }
        let started = Instant::now();
        step.perform(change).await?;
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        answer.steps.push((step.name.to_owned(), micros));
    }
    Ok(answer)
}

/// The entropy, if everything else is well-formed, too.
fn check(identity: &Identity) -> Result<Vec<u8>, IdentityError> {
    let name = |text: &str| {
        (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
    };
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let uuid = |text: &str| {
        text.len() == 36 && text.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && text.split('-').all(hex)
    };
    if !name(&identity.id) || !name(&identity.hostname) {
        return Err(IdentityError::Request("id and hostname are 1 to 64 letters, digits, dots and dashes"));
    }
    if identity.machine_id.len() != 32 || !hex(&identity.machine_id) || !uuid(&identity.boot_id) {
        return Err(IdentityError::Request("machine_id is 32 hex digits and boot_id a UUID, in lower case"));
    }
    if identity.env.keys().any(|key| key.is_empty() || key.contains(['=', '\0']))
        || identity.env.values().any(|value| value.contains('\0'))
    {
        return Err(IdentityError::Request("env has a name or value that no process can be given"));
    }
    enough_entropy(&identity.entropy_base64)
}

fn enough_entropy(base64: &str) -> Result<Vec<u8>, IdentityError> {
    let entropy = BASE64.decode(base64).unwrap_or_default();
    if entropy.len() < ENTROPY_MIN {
        return Err(IdentityError::Request("entropy_base64 is less than 64 bytes"));
    }
    Ok(entropy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            id: "sb-1".into(),
            hostname: "sb-1".into(),
            machine_id: "0123456789abcdef0123456789abcdef".into(),
            boot_id: "01234567-89ab-cdef-0123-456789abcdef".into(),
            entropy_base64: BASE64.encode([7; 64]),
            realtime_ns: 1,
            env: [("A".to_owned(), "b".to_owned())].into(),
            network: None,
            secrets: Vec::new(),
        }
    }

    #[test]
    fn well_formed() {
        assert_eq!(check(&identity()).unwrap(), [7; 64]);
    }

    #[test]
    fn malformed() {
        let spoil: [fn(&mut Identity); 7] = [
            |i| i.id = "a/b".into(),
            |i| i.hostname = String::new(),
            |i| i.hostname = "a\nb".into(),
            |i| i.machine_id.push('0'),
            |i| i.boot_id = "0123456789ab-cdef-0123-456789abcdef-0".into(),
            |i| i.entropy_base64 = BASE64.encode([7; 63]),
            |i| drop(i.env.insert("A=".into(), String::new())),
        ];
        for spoil in spoil {
            let mut identity = identity();
            spoil(&mut identity);
            assert!(matches!(check(&identity), Err(IdentityError::Request(_))), "{identity:?}");
        }
    }
}
