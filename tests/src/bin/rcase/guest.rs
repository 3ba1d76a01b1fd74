//! The side in the guest: requests to `tests/interop/guest/agent.py` over one TCP connection.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::side::{
    Completion, Difference, Endpoint, Failure, Kind, Link, Op, Outcome, Recv, Right, Send, Side,
};

/// A device in a guest, driven by its agent.
pub(crate) struct Guest {
    name: &'static str,
    gid_index: u32,
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Guest {
    /// Connects to the agent; queue pairs will use this entry of the guest's GID table.
    pub(crate) fn connect(name: &'static str, agent: SocketAddr, gid_index: u32) -> Outcome<Self> {
        let open = || -> std::io::Result<Self> {
            let writer = TcpStream::connect_timeout(&agent, Duration::from_secs(10))?;
            writer.set_nodelay(true)?;
            writer.set_read_timeout(Some(Duration::from_secs(120)))?;
            let reader = BufReader::new(writer.try_clone()?);
            Ok(Self { name, gid_index, reader, writer })
        };
        open().map_err(|e| Failure::Broken { side: name, what: format!("agent at {agent}: {e}") })
    }

    fn broken(&self, what: impl ToString) -> Failure {
        Failure::Broken { side: self.name, what: what.to_string() }
    }

    fn ask(&mut self, request: &Value) -> Outcome<Value> {
        let mut line = request.to_string();
        line.push('\n');
        self.writer.write_all(line.as_bytes()).map_err(|e| self.broken(e))?;
        line.clear();
        self.reader.read_line(&mut line).map_err(|e| self.broken(e))?;
        let answer: Value = serde_json::from_str(&line).map_err(|e| self.broken(e))?;
        if let Some(what) = answer["unsupported"].as_str() {
            return Err(Failure::Unsupported(what.to_owned()));
        }
        match answer["error"].as_str() {
            Some(what) => Err(self.broken(what)),
            None => Ok(answer),
        }
    }

    fn parse<T: DeserializeOwned>(&self, value: Value) -> Outcome<T> {
        serde_json::from_value(value).map_err(|e| self.broken(e))
    }
}

impl Side for Guest {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&mut self, kind: Kind, psn: u32, rights: &[Right]) -> Outcome<Endpoint> {
        let gid = self.gid_index;
        let answer =
            self.ask(&json!({"do": "open", "kind": kind, "psn": psn, "gid": gid, "rights": rights}))?;
        self.parse(answer)
    }

    fn connect(&mut self, remote: &Endpoint, link: &Link) -> Outcome {
        self.ask(&json!({
            "do": "connect", "qpn": remote.qpn, "psn": remote.psn, "gid": remote.gid, "mtu": link.mtu,
            "timeout": link.timeout, "retry_cnt": link.retry_cnt, "rnr_retry": link.rnr_retry,
            "min_rnr_timer": link.min_rnr_timer, "rd_atomic": link.rd_atomic,
        }))?;
        Ok(())
    }

    fn fill(&mut self, off: u64, len: u64, seed: u8, skip: u64) -> Outcome {
        self.ask(&json!({"do": "fill", "off": off, "len": len, "seed": seed, "skip": skip}))?;
        Ok(())
    }

    fn difference(&mut self, off: u64, len: u64, seed: u8, skip: u64) -> Outcome<Difference> {
        let answer =
            self.ask(&json!({"do": "matches", "off": off, "len": len, "seed": seed, "skip": skip}))?;
        match answer["same"].as_bool() {
            Some(true) => Ok(None),
            Some(false) => Ok(answer["at"].as_u64()),
            None => Err(self.broken(format!("unexpected answer {answer}"))),
        }
    }

    fn put(&mut self, off: u64, data: &[u8]) -> Outcome {
        let mut hex = String::with_capacity(2 * data.len());
        for b in data {
            write!(hex, "{b:02x}").map_err(|e| self.broken(e))?;
        }
        self.ask(&json!({"do": "put", "off": off, "hex": hex}))?;
        Ok(())
    }

    fn get(&mut self, off: u64, len: u64) -> Outcome<Vec<u8>> {
        let answer = self.ask(&json!({"do": "get", "off": off, "len": len}))?;
        let hex = answer["hex"].as_str().unwrap_or_default();
        let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|s| u8::from_str_radix(s, 16).ok());
        let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
        bytes.ok_or_else(|| self.broken(format!("unexpected answer {answer}")))
    }

    fn post_send(&mut self, requests: &[Send]) -> Outcome {
        self.ask(&json!({"do": "post_send", "wrs": requests}))?;
        Ok(())
    }

    fn post_recv(&mut self, requests: &[Recv]) -> Outcome {
        self.ask(&json!({"do": "post_recv", "wrs": requests}))?;
        Ok(())
    }

    fn bind(&mut self, off: u64, len: u64) -> Outcome<u32> {
        let answer = self.ask(&json!({"do": "bind", "off": off, "len": len}))?;
        self.parse(answer["rkey"].clone())
    }

    fn invalidate(&mut self, rkey: u32) -> Outcome {
        self.ask(&json!({"do": "invalidate", "rkey": rkey}))?;
        Ok(())
    }

    fn has(&mut self, op: Op) -> Outcome<bool> {
        let answer = self.ask(&json!({"do": "has", "op": op}))?;
        self.parse(answer["has"].clone())
    }

    fn poll(&mut self, n: usize, limit: Duration) -> Outcome<Vec<Completion>> {
        let answer = self.ask(&json!({"do": "poll", "n": n, "seconds": limit.as_secs_f64()}))?;
        self.parse(answer["wcs"].clone())
    }
}
