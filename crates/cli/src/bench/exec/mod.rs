//! What forkd itself adds to a command or an evaluation: round trips of a client that stays, without the time that the
//! guest spent in them, beside an echo on the same way; and how fast output streams, beside a plain copy on that way.
//!
//! The three are asked in turn, so that whatever else the host does meets all of them.

mod report;

use std::time::Instant;

use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{EvalRequest, EvalResponse, ExecRequest, ExecResponse, SandboxInfo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub(crate) use report::Report;
use report::{Calls, Stream, Streams};

use super::session::{Session, TIMEOUT_SECS, wrong};
use super::spread::micros;
use crate::commands::port_forward::connect;
use crate::error::CliError;
use crate::kept::Kept;
use crate::process::{Ending, Event, Process, Spec};

/// Round trips before those that count.
const UNCOUNTED: u32 = 10;
/// How many round trips pass without a word.
const NOTED: u32 = 100;
/// What is sent there and back.
const ECHOED: [u8; 64] = [b'.'; 64];
/// Read at a time.
const BUFFER: usize = 256 * 1024;

/// What is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exec<'a> {
    /// Snapshot with a warm interpreter.
    pub(crate) tag: &'a str,
    /// How many round trips of each kind.
    pub(crate) calls: u32,
    /// How much is streamed, MiB.
    pub(crate) stream_mib: u64,
}

/// One round trip: all of it, and what of it was spent in the guest's program; microseconds.
type Trip = (u64, u64);

impl Exec<'_> {
    /// Does it. What was measured until it is asked to stop is reported.
    pub(crate) async fn run(&self, session: Session<'_>) -> Result<Report, CliError> {
        session
            .with_child(self.tag, async |child, _| {
                let calls = self.calls(&session, child).await?;
                let streams = match session.stop.code() {
                    None => Some(self.streams(&session, child).await?),
                    Some(_) => None,
                };
                Ok(Report::new(self.tag, calls, streams))
            })
            .await
    }

    async fn calls(&self, session: &Session<'_>, child: &SandboxInfo) -> Result<Calls, CliError> {
        let id: SandboxId = child.id.parse()?;
        let mut kept = Kept::open(session.client).await?;
        let mut echo = connect(session.client, &id, "echo").await?;
        let step = session.ui.step(format!("{} round trips of each kind", self.calls));
        let (mut evals, mut execs, mut echoes) = (Vec::new(), Vec::new(), Vec::new());
        for call in 0..UNCOUNTED + self.calls {
            if session.stop.code().is_some() {
                break;
            }
            let round = (
                session.stop.bound(eval(&mut kept, child)).await?,
                session.stop.bound(exec(&mut kept, child)).await?,
                session.stop.bound(there_and_back(&mut echo)).await?,
            );
            let Some(counted) = call.checked_sub(UNCOUNTED) else { continue };
            evals.push(round.0);
            execs.push(round.1);
            echoes.push(round.2);
            if counted > 0 && counted % NOTED == 0 {
                step.note(&format!("{counted} done"));
            }
        }
        step.done("");
        Ok(Calls { evals, execs, echoes })
    }

    async fn streams(&self, session: &Session<'_>, child: &SandboxInfo) -> Result<Streams, CliError> {
        let id: SandboxId = child.id.parse()?;
        let bytes = self.stream_mib << 20;
        let step = session.ui.step(format!("{} MiB of output, and a plain copy of as much", self.stream_mib));
        let began = Instant::now();
        let output = session.stop.bound(output(session, &id, bytes)).await?;
        let output = Stream { bytes: output, micros: micros(began.elapsed()) };
        let mut source = connect(session.client, &id, "source").await?;
        let began = Instant::now();
        session.stop.bound(copy(&mut source, bytes)).await?;
        let copy = Stream { bytes, micros: micros(began.elapsed()) };
        step.done("");
        Ok(Streams { output, copy })
    }
}

async fn eval(kept: &mut Kept<'_>, child: &SandboxInfo) -> Result<Trip, CliError> {
    let request = EvalRequest { code: "1+1".to_owned(), timeout_secs: TIMEOUT_SECS };
    let began = Instant::now();
    let answer: EvalResponse = kept.post(&format!("/v1/sandboxes/{}/eval", child.id), &request).await?;
    let took = micros(began.elapsed());
    match answer.result.as_deref() {
        Some("2") => Ok((took, answer.micros)),
        other => Err(wrong(child, &format!("1+1 gave {other:?}"))),
    }
}

async fn exec(kept: &mut Kept<'_>, child: &SandboxInfo) -> Result<Trip, CliError> {
    let request = ExecRequest::of(["true"], TIMEOUT_SECS);
    let began = Instant::now();
    let answer: ExecResponse = kept.post(&format!("/v1/sandboxes/{}/exec", child.id), &request).await?;
    let took = micros(began.elapsed());
    match answer.exit_code {
        0 => Ok((took, answer.micros)),
        code => Err(wrong(child, &format!("true ended with {code}"))),
    }
}

async fn there_and_back(echo: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<u64, CliError> {
    let mut back = [0; ECHOED.len()];
    let began = Instant::now();
    let trip = async {
        echo.write_all(&ECHOED).await?;
        echo.flush().await?;
        echo.read_exact(&mut back).await
    };
    trip.await.map_err(|e| CliError::io("sending to the echo of a sandbox", e))?;
    let took = micros(began.elapsed());
    if back == ECHOED {
        Ok(took)
    } else {
        Err(CliError::local(ErrorClass::GuestFault, "the echo is another text"))
    }
}

/// Output of a command, as `forkd exec` reads it; how many bytes there were.
async fn output(session: &Session<'_>, id: &SandboxId, bytes: u64) -> Result<u64, CliError> {
    let args = ["head", "-c", &bytes.to_string(), "/dev/zero"].map(str::to_owned).to_vec();
    let mut process = Process::start(session.client, id, &Spec { args, ..Spec::default() }).await?;
    let mut got = 0;
    while let Some(event) = process.next().await? {
        if let Event::Stdout(piece) = event {
            got += piece.len() as u64;
        }
    }
    match process.ending()? {
        Ending::Exited(0) if got == bytes => Ok(got),
        how => {
            let text = format!("in {id}: head gave {got} of {bytes} bytes and ended as {how:?}");
            Err(CliError::local(ErrorClass::GuestFault, text))
        }
    }
}

async fn copy(source: &mut (impl AsyncRead + Unpin), bytes: u64) -> Result<(), CliError> {
    let failed = |e| CliError::io("copying out of a sandbox", e);
    let (mut left, mut buffer) = (bytes, vec![0; BUFFER]);
    while left > 0 {
        let got = source.read(&mut buffer).await.map_err(failed)? as u64;
        if got == 0 {
            return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
        }
        left = left.saturating_sub(got);
    }
    Ok(())
}
