//! `proxy`: turns flags into proxies and serves until interrupted.

use crate::cli::flags::Global;
use crate::cli::flags::verify::ProxyFlags;
use crate::cli::progress;
use crate::cli::refusal::ExitReason;
use crate::cli::terminal::note;
use crate::proxy::Proxy;
use std::process::ExitCode;
use tokio::task::JoinSet;

pub async fn serve(global: &Global, flags: &ProxyFlags) -> Result<ExitCode, ExitReason> {
    let ProxyFlags { listen, lies, every } = flags;
    if listen.len() != global.endpoints.len() {
        return Err(ExitReason::CommandLine(format!(
            "{} addresses in --listen for {} endpoints: give one for each",
            listen.len(),
            global.endpoints.len()
        )));
    }
    let (mut proxies, mut all_counts) = (JoinSet::new(), Vec::new());
    for (listen, endpoint) in listen.iter().zip(&global.endpoints) {
        let proxy = Proxy::bind(listen, endpoint.clone(), lies, *every).await;
        let proxy = proxy.map_err(|error| format!("listen on {listen}: {error}"))?;
        let address = proxy.address().map_err(|error| format!("listen on {listen}: {error}"))?;
        note(&format!("{address} is {endpoint} with a fault"));
        all_counts.push((address, proxy.counts()));
        proxies.spawn(proxy.serve());
    }
    progress::interrupted().await;
    proxies.shutdown().await;
    for (address, counts) in all_counts {
        let counts = counts.get().into_iter().map(|(lie, times)| format!("{lie} {times} times"));
        note(&format!("{address} lied: {}", counts.collect::<Vec<_>>().join(", ")));
    }
    Ok(ExitCode::SUCCESS)
}
