//! `forkd events`: what happened, and what happens.

use forkd_protocol::rest::EventInfo;
use http::{Method, header};

use crate::client::empty;
use crate::context::Context;
use crate::error::CliError;
use crate::parse::percent;
use crate::{sse, ui};

/// What happened.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd events -n 20\n  forkd events --follow --kind sandbox.ended\n  \
                        forkd events --subject sb-6a2f-0001\n\n\
                        Kinds: sandbox.forked, .branched, .paused, .resumed, .ended (by itself, such as killed: memory),\n\
                        .killed, .removed; snapshot.made, .failed, .removed; image.made, .removed; kernel.made, .removed.")]
pub(crate) struct Args {
    /// Go on with what happens, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// How many of those that happened
    #[arg(short, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    n: u32,
    /// What happened to this sandbox, snapshot, image or kernel
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// What has to do with this snapshot
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Of this kind, or of these: sandbox.ended, or sandbox
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let mut query = format!("/v1/events?limit={}", args.n);
    for (name, value) in [("subject", &args.subject), ("tag", &args.tag), ("kind", &args.kind)] {
        if let Some(value) = value {
            query += &format!("&{name}={}", percent(value));
        }
    }
    let happened: Vec<EventInfo> = client.get(&query).await?;
    if !args.follow {
        context.ui.show(&happened, |happened| render(happened, ui::now_unix()));
        return Ok(0);
    }
    let print = |event: &EventInfo| context.ui.line(&line(event, context.ui.is_json()));
    happened.iter().for_each(print);
    // None between the last of these and the first that follows is lost.
    let seen = happened.last().map(|event| format!("&after={}", event.seq)).unwrap_or_default();
    let request = client.request(Method::GET, &(query + &seen));
    let answer = client.send(request.header(header::ACCEPT, "text/event-stream").body(empty())).await?;
    tokio::select! {
        ended = sse::each(answer.into_body(), print) => ended.map(|()| 0),
        code = super::interrupted() => code,
    }
}

/// One event a line: for programs as JSON.
fn line(event: &EventInfo, json: bool) -> String {
    if json {
        return serde_json::to_string(event).unwrap_or_default();
    }
    let at = humantime::format_rfc3339_millis(
        std::time::UNIX_EPOCH + std::time::Duration::from_millis(event.at_unix_ms),
    );
    let [kind, subject, tag, detail] = words(event);
    format!("{at}  {kind:<17} {subject}  {tag}  {detail}").trim_end().to_owned()
}

fn words(event: &EventInfo) -> [String; 4] {
    let tag = event.tag.as_ref().filter(|tag| **tag != event.subject).cloned();
    let detail = event.detail.as_deref().map(ui::plain).unwrap_or_default();
    [event.kind.name().to_owned(), event.subject.clone(), tag.unwrap_or_default(), detail]
}

fn render(happened: &[EventInfo], now: u64) -> String {
    if happened.is_empty() {
        return "nothing has happened yet".to_owned();
    }
    ui::table(
        &["AGE", "WHAT", "TO", "SNAPSHOT", "WHY"],
        happened.iter().map(|event| {
            let [kind, subject, tag, detail] = words(event);
            [ui::age(event.at_unix_ms / 1000, now), kind, subject, tag, detail]
        }),
    )
}
