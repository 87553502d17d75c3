//! `agent`: executes the commands of controllers, one after the other.
//!
//! * Only commands that send one kind of request are executed. Their output flags have no effect here.
//! * A controller that ends its connection ends the run.

use crate::agents::{Line, Order, Reply};
use crate::cli::access;
use crate::cli::flags::sending::{AgentFlags, Sending};
use crate::cli::flags::{Cli, Command};
use crate::cli::plans::{self, coordination};
use crate::cli::progress::interrupted;
use crate::cli::refusal::Refusal;
use crate::cli::terminal::note;
use crate::output::text::chain;
use crate::run::{self, Plan};
use crate::workload::Workload;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// The interval between looks whether a run has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Serves controllers until it is interrupted.
pub async fn serve(flags: &AgentFlags) -> Result<ExitCode, Refusal> {
    let listener = TcpListener::bind(&flags.listen).await;
    let listener = listener.map_err(|error| format!("listen on {}: {error}", flags.listen))?;
    let address = listener.local_addr().map_err(|error| format!("listen on {}: {error}", flags.listen))?;
    note(&format!("agent at {address}"));
    let mut interrupted = std::pin::pin!(interrupted());
    loop {
        let (stream, controller) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // A connection that ended before it was accepted.
                Err(_) => continue,
            },
            () = &mut interrupted => return Ok(ExitCode::SUCCESS),
        };
        note(&format!("controller {controller}"));
        tokio::select! {
            () = executed(stream) => {}
            () = &mut interrupted => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// One command, from its arguments to its result.
async fn executed(stream: TcpStream) {
    let mut line = Line::new(stream);
    let reply = match measured(&mut line).await {
        Ok(reply) => reply,
        Err(reason) => Reply::Refused(reason),
    };
    // A controller that ended needs no reply.
    let _ = line.send(&reply).await;
}

async fn measured(line: &mut Line) -> Result<Reply, String> {
    let Order::Prepare(arguments) = line.receive().await.map_err(|error| error.to_string())? else {
        return Err("a controller begins before it has sent a command".into());
    };
    note(&arguments.join(" "));
    let plan = planned(arguments).await?;
    let prepared = tokio::task::spawn_blocking(|| plan.prepare()).await.expect("preparing does not panic");
    let prepared = prepared.map_err(|error| chain(&error))?;
    line.send(&Reply::Prepared).await.map_err(|error| error.to_string())?;
    let Order::Begin = line.receive().await.map_err(|error| error.to_string())? else {
        return Err("a controller sends a command twice".into());
    };
    let run = prepared.begin();
    let control = run.control();
    let ended = async {
        while !run.progress().finished {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = ended => {}
        // Nothing more comes but the end of the connection.
        _ = line.receive::<Order>() => control.stop("the controller ended"),
    }
    let measurement = tokio::task::spawn_blocking(|| run.finish()).await.expect("a run does not panic");
    measurement.map(|measurement| Reply::Ended(Box::new(measurement))).map_err(|error| chain(&error))
}

/// The plan of a command line.
async fn planned(arguments: Vec<String>) -> Result<Plan, String> {
    let arguments = std::iter::once("loadgen".to_owned()).chain(arguments).map(Into::into).collect();
    let mut cli = Cli::read(arguments).map_err(|error| error.to_string())?;
    let global = &mut cli.global;
    if global.security.user.is_some() && global.security.password.is_none() {
        return Err("an agent asks for no password: give it with --password".into());
    }
    access::check(&global.security)?;
    plans::check_callers(global)?;
    let endpoints = std::mem::take(&mut global.endpoints);
    global.endpoints = access::admit(&global.security, endpoints).await?;
    let (workload, sending) = workload(&cli.command)?;
    let target = if cli.global.target_leader { run::Target::Leader } else { run::Target::All };
    Ok(Plan { target, ..plans::plan(&cli.global, cli.global.endpoints.clone(), workload, sending)? })
}

/// Whether agents execute a command, with these flags.
pub fn check(command: &Command) -> Result<(), String> {
    let (_, sending) = workload(command)?;
    if sending.steps.are_wanted() || sending.steps.warm_up.is_some() {
        return Err("--rates, --find-max-rate and --warm-up are not offered with --agents".into());
    }
    Ok(())
}

fn workload(command: &Command) -> Result<(Workload, &Sending), String> {
    match command {
        Command::Put(flags) => Ok((plans::put(flags)?, &flags.sending)),
        Command::TxnPut(flags) => Ok((plans::txn_put(flags)?, &flags.sending)),
        Command::Range(flags) => Ok((plans::range(flags)?, &flags.sending)),
        Command::TxnMixed(flags) => Ok((coordination::txn_mixed(flags)?, &flags.sending)),
        Command::Stm(flags) => Ok((coordination::stm(flags)?, &flags.sending)),
        _ => Err("agents execute put, txn-put, range, txn-mixed and stm".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loads_of_one_kind_are_executed() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        let plan = planned(words("put --clients=7 --total=50 --json=/nonexistent/x --agents=a:1")).await;
        assert_eq!(plan.map(|plan| (plan.clients, plan.total)).unwrap(), (7, 50));
        for line in ["verify", "compare --a=x=/bin/sh --b=y=/bin/sh", "report x.json", "put --clients=0"] {
            assert!(planned(words(line)).await.is_err(), "{line}");
        }
    }
}
