//! Sends the command line of this process to agents, and merges their results.

use crate::agents::{AgentLine, AgentOrder, AgentPlace, AgentReply, merged};
use crate::cli::progress::interrupted;
use crate::cli::refusal::ExitReason;
use crate::cli::terminal::note;
use crate::run::results::Measurement;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};

/// Timeout of an agent without a message; agents send heartbeats every second.
const SILENCE: Duration = Duration::from_secs(10);
/// Interval between two progress lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the command with these arguments on all agents at the same time. Ctrl-C stops it early.
pub async fn run(agents: &[String], arguments: Vec<String>) -> Result<Measurement, ExitReason> {
    let (stop, stopped) = watch::channel(false);
    let mut all = std::pin::pin!(measured(agents, arguments, stopped, SILENCE));
    tokio::select! {
        result = &mut all => return result,
        () = interrupted() => {}
    }
    stop.send_replace(true);
    all.await
}

async fn measured(
    agents: &[String],
    arguments: Vec<String>,
    mut stopped: watch::Receiver<bool>,
    silence: Duration,
) -> Result<Measurement, ExitReason> {
    let lines = tokio::select! {
        lines = prepared(agents, arguments, silence) => lines?,
        // Dropping the connections aborts the agents.
        () = stop(&mut stopped) => {
            return Err(ExitReason::Interrupted("interrupted before the measurement began".into()));
        }
    };
    let counts: Arc<Vec<(AtomicU64, AtomicU64)>> =
        Arc::new(lines.iter().map(|_| Default::default()).collect());
    let mut running = JoinSet::new();
    for (place, (agent, mut line)) in lines.into_iter().enumerate() {
        let (counts, stopped) = (counts.clone(), stopped.clone());
        running.spawn(async move {
            let ended = followed(&mut line, stopped, &counts[place], silence).await;
            ended.map_err(|reason| format!("agent {agent}: {reason}"))
        });
    }
    let (mut measurements, mut failed) = (Vec::new(), Vec::new());
    let mut ticks = interval_at(Instant::now() + LINE_INTERVAL, LINE_INTERVAL);
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(Ok(Ok(measurement))) => measurements.push(measurement),
                Some(Ok(Err(reason))) => failed.push(reason),
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
                None => break,
            },
            _ = ticks.tick() => say(&counts),
        }
    }
    summed(measurements, &failed)
}

fn say(counts: &[(AtomicU64, AtomicU64)]) {
    let answered: u64 = counts.iter().map(|(answered, _)| answered.load(Relaxed)).sum();
    let failed: u64 = counts.iter().map(|(_, failed)| failed.load(Relaxed)).sum();
    note(&format!("{answered} answered and {failed} failed on {} agents", counts.len()));
}

/// Merges the available measurements. The result is partial if an agent failed.
fn summed(measurements: Vec<Measurement>, failed: &[String]) -> Result<Measurement, ExitReason> {
    let reasons = failed.join("; ");
    let Some(mut whole) = merged(measurements) else { return Err(ExitReason::Run(reasons)) };
    if !failed.is_empty() {
        whole.partial = Some(format!("{reasons}; what it sent is not counted"));
    }
    Ok(whole)
}

/// Connects to each agent, and waits until all of them are ready to start.
async fn prepared(
    agents: &[String],
    arguments: Vec<String>,
    silence: Duration,
) -> Result<Vec<(String, AgentLine)>, ExitReason> {
    let mut lines = Vec::with_capacity(agents.len());
    for (index, agent) in agents.iter().enumerate() {
        let fail = |reason: String| ExitReason::Run(format!("agent {agent}: {reason}"));
        let connected = timeout(silence, TcpStream::connect(agent)).await;
        let connected = connected.map_err(|_| fail(format!("no connection within {silence:?}")))?;
        let mut line = AgentLine::new(connected.map_err(|error| fail(error.to_string()))?);
        let place = AgentPlace { index: index as u64, of: agents.len() as u64 };
        let order = AgentOrder::Prepare { arguments: arguments.clone(), place };
        line.send(&order).await.map_err(|error| fail(error.to_string()))?;
        lines.push((agent.clone(), line));
    }
    for (agent, line) in &mut lines {
        loop {
            match heard(line, silence).await {
                Ok(AgentReply::Working { .. }) => {}
                Ok(AgentReply::Prepared) => break,
                other => return Err(ExitReason::Run(format!("agent {agent}: {}", unexpected(other)))),
            }
        }
    }
    Ok(lines)
}

/// Starts an agent, and waits for its result.
async fn followed(
    line: &mut AgentLine,
    mut stopped: watch::Receiver<bool>,
    (answered, failed): &(AtomicU64, AtomicU64),
    silence: Duration,
) -> Result<Measurement, String> {
    line.send(&AgentOrder::Begin).await.map_err(|error| error.to_string())?;
    let mut is_stopped = false;
    loop {
        tokio::select! {
            reply = heard(line, silence) => match reply {
                Ok(AgentReply::Working { answered: so_far, failed: so_far_failed }) => {
                    answered.store(so_far, Relaxed);
                    failed.store(so_far_failed, Relaxed);
                }
                Ok(AgentReply::Ended(measurement)) => return Ok(*measurement),
                other => return Err(unexpected(other)),
            },
            () = stop(&mut stopped), if !is_stopped => {
                is_stopped = true;
                line.send(&AgentOrder::Stop).await.map_err(|error| error.to_string())?;
            }
        }
    }
}

/// Completes when the run is stopped early.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending().await
    }
}

async fn heard(line: &mut AgentLine, silence: Duration) -> std::io::Result<AgentReply> {
    timeout(silence, line.receive()).await.unwrap_or_else(|_| {
        let text = format!("no sign of life for {silence:?}");
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
    })
}

fn unexpected(reply: std::io::Result<AgentReply>) -> String {
    match reply {
        Ok(AgentReply::Refused(reason)) => reason,
        Ok(AgentReply::Prepared | AgentReply::Working { .. } | AgentReply::Ended(_)) => {
            "it answers out of order".into()
        }
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::progress::INTERRUPTED;
    use crate::run::recorder::Tally;
    use tokio::net::TcpListener;

    /// Behaviour of a test agent after its start.
    #[derive(Clone, Copy, PartialEq)]
    enum Then {
        Ends,
        Dies,
        IsSilent,
        EndsWhenStopped,
    }

    /// Starts an agent for a single controller; returns its address.
    async fn agent(then: Then) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut line = AgentLine::new(listener.accept().await.unwrap().0);
            let AgentOrder::Prepare { .. } = line.receive().await.unwrap() else {
                panic!("a command comes first")
            };
            line.send(&AgentReply::Working { answered: 0, failed: 0 }).await.unwrap();
            line.send(&AgentReply::Prepared).await.unwrap();
            let AgentOrder::Begin = line.receive().await.unwrap() else { panic!("it begins") };
            line.send(&AgentReply::Working { answered: 3, failed: 1 }).await.unwrap();
            let mut tally = Tally::new();
            (0..5).for_each(|_| tally.succeeded(1, Duration::from_millis(1), 1));
            let mut measurement = Measurement { tally, planned: 5, ..Measurement::default() };
            match then {
                Then::Ends => {}
                Then::Dies => return,
                Then::IsSilent => std::future::pending().await,
                Then::EndsWhenStopped => {
                    let AgentOrder::Stop = line.receive().await.unwrap() else { panic!("it is stopped") };
                    measurement.partial = Some(INTERRUPTED.into());
                }
            }
            line.send(&AgentReply::Ended(Box::new(measurement))).await.unwrap();
        });
        address
    }

    /// Returns the number of requests and the reason why they are partial, or the error.
    async fn measured_by(all: &[Then], stops: bool) -> Result<(u64, Option<String>), ExitReason> {
        let mut agents = Vec::new();
        for then in all {
            agents.push(agent(*then).await);
        }
        let (stop, stopped) = watch::channel(false);
        let silence = Duration::from_millis(500);
        let mut result = std::pin::pin!(measured(&agents, Vec::new(), stopped, silence));
        if stops {
            let early = timeout(Duration::from_millis(200), &mut result).await;
            assert!(early.is_err(), "it ends only when it is stopped");
            stop.send_replace(true);
        }
        let whole = result.await?;
        let partial = whole.partial.map(|reason| reason.replace(&agents[agents.len() - 1], "LAST"));
        Ok((whole.tally.succeeded_len(), partial))
    }

    #[tokio::test]
    async fn an_agent_that_dies_is_missing_and_the_others_count() {
        assert_eq!(measured_by(&[Then::Ends, Then::Ends], false).await, Ok((10, None)));
        let missing = |reason: &str| Some(format!("agent LAST: {reason}; what it sent is not counted"));
        let died = measured_by(&[Then::Ends, Then::Dies], false).await;
        assert_eq!(died, Ok((5, missing("the other side ended"))));
        let silent = measured_by(&[Then::Ends, Then::IsSilent], false).await;
        assert_eq!(silent, Ok((5, missing("no sign of life for 500ms"))));
        let all = measured_by(&[Then::Dies, Then::Dies], false).await.unwrap_err();
        let ExitReason::Run(reason) = all else { panic!("{all:?}") };
        assert_eq!(reason.matches("the other side ended").count(), 2, "{reason}");
    }

    #[tokio::test]
    async fn agents_that_are_stopped_send_what_they_have() {
        let stopped = measured_by(&[Then::Ends, Then::EndsWhenStopped], true).await;
        assert_eq!(stopped, Ok((10, Some(INTERRUPTED.into()))));
    }
}
