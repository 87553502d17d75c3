//! Sends the command line of this process to agents, and adds their results up.

use crate::agents::{Line, Order, Reply, merged};
use crate::cli::progress::interrupted;
use crate::run::results::Measurement;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Runs the command of these arguments on all agents at the same time. Ctrl-C gives up.
pub async fn run(agents: &[String], arguments: Vec<String>) -> Result<Measurement, String> {
    let all = measured(agents, arguments);
    tokio::select! {
        result = all => result,
        () = interrupted() => Err("interrupted: the agents ended, without results".into()),
    }
}

async fn measured(agents: &[String], arguments: Vec<String>) -> Result<Measurement, String> {
    let mut lines = Vec::with_capacity(agents.len());
    for agent in agents {
        let fail = |error: std::io::Error| format!("agent {agent}: {error}");
        let mut line = Line::new(TcpStream::connect(agent).await.map_err(fail)?);
        line.send(&Order::Prepare(arguments.clone())).await.map_err(fail)?;
        lines.push((agent.clone(), line));
    }
    for (agent, line) in &mut lines {
        match line.receive().await {
            Ok(Reply::Prepared) => {}
            other => return Err(format!("agent {agent}: {}", unexpected(other))),
        }
    }
    let mut running = JoinSet::new();
    for (agent, mut line) in lines {
        line.send(&Order::Begin).await.map_err(|error| format!("agent {agent}: {error}"))?;
        running.spawn(async move {
            match line.receive().await {
                Ok(Reply::Ended(measurement)) => Ok(*measurement),
                other => Err(format!("agent {agent}: {}", unexpected(other))),
            }
        });
    }
    let runs = running.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    merged(runs).ok_or_else(|| "no agent was given".into())
}

fn unexpected(reply: std::io::Result<Reply>) -> String {
    match reply {
        Ok(Reply::Refused(reason)) => reason,
        Ok(Reply::Prepared | Reply::Ended(_)) => "it answers out of order".into(),
        Err(error) => error.to_string(),
    }
}
