//! One side of a transfer with nixl-sys, for `test_nixl_sys.py`. argv: the agent's name, a backend and its parameters (key=value).
//! It takes calls as JSON lines, as talk.py does.

use std::error::Error;
use std::io::{stdin, BufRead};
use std::thread::sleep;
use std::time::Duration;

use nixl_sys::{Agent, MemType, MemoryRegion, NixlDescriptor, NotificationMap, OptArgs, XferDescList, XferOp, XferRequest};
use serde_json::{json, Value};

const SIZE: usize = 3 << 20;
const POLL: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Memory(Vec<u8>);

impl MemoryRegion for Memory {
    unsafe fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
    fn size(&self) -> usize {
        self.0.len()
    }
}

impl NixlDescriptor for Memory {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }
    fn device_id(&self) -> u64 {
        0
    }
}

/// Bytes that differ at each place: equal for a seed in both processes.
fn content(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

fn list(memory: usize) -> Result<XferDescList<'static>, Box<dyn Error>> {
    let mut made = XferDescList::new(MemType::Dram)?;
    for at in (0..SIZE).step_by(SIZE / 3) {
        made.add_desc(memory + at, SIZE / 3, 0);
    }
    Ok(made)
}

fn finish(agent: &Agent, request: &XferRequest) -> Result<(), Box<dyn Error>> {
    agent.post_xfer_req(request, None)?;
    while !agent.get_xfer_status(request)?.is_success() {
        sleep(POLL);
    }
    Ok(())
}

struct Peer {
    agent: Agent,
    memory: Memory,
}

impl Peer {
    fn address(&self) -> usize {
        self.memory.0.as_ptr() as usize
    }

    fn call(&mut self, name: &str, args: &[Value]) -> Result<Value, Box<dyn Error>> {
        let number = |i: usize| args[i].as_u64().ok_or("not a number");
        match name {
            "describe" => Ok(json!([self.agent.get_local_md()?, self.address()])),
            "load" => {
                let metadata: Vec<u8> = serde_json::from_value(args[0].clone())?;
                Ok(json!(self.agent.load_remote_md(&metadata)?))
            }
            "fill" => {
                let bytes = content(number(0)?);
                self.memory.0.copy_from_slice(&bytes);
                Ok(Value::Null)
            }
            // Moves between all of our memory and the peer's: its name, its address, WRITE or READ.
            "transfer" => {
                let op = if args[2] == "WRITE" { XferOp::Write } else { XferOp::Read };
                let mut options = OptArgs::new()?;
                options.set_notification_message(b"moved")?;
                options.set_has_notification(true)?;
                let (here, there) = (list(self.address())?, list(number(1)? as usize)?);
                let peer = args[0].as_str().ok_or("no name")?;
                let request = self.agent.create_xfer_req(op, &here, &there, peer, Some(&options))?;
                finish(&self.agent, &request)?;
                Ok(json!(SIZE))
            }
            "notified" => {
                let mut found = NotificationMap::new()?;
                while found.is_empty()? {
                    self.agent.get_notifications(&mut found, None)?;
                    sleep(POLL);
                }
                Ok(json!(found.take_notifs()?))
            }
            "check" => Ok(json!(self.memory.0 == content(number(0)?))),
            _ => Err("no such call".into()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let agent = Agent::new(&args[1])?;
    // As Dynamo: all parameters that the plugin shows are handed back.
    let (_, mut params) = agent.get_plugin_params(&args[2])?;
    for pair in &args[3..] {
        let (key, value) = pair.split_once('=').ok_or("not key=value")?;
        params.set(key, value)?;
    }
    agent.create_backend(&args[2], &params)?;
    let memory = Memory(vec![0; SIZE]);
    let _registered = agent.register_memory(&memory, None)?;
    let mut peer = Peer { agent, memory };
    println!("@ \"ready\"");
    for line in stdin().lock().lines() {
        let (name, args): (String, Vec<Value>) = serde_json::from_str(&line?)?;
        let answer = match peer.call(&name, &args) {
            Ok(value) => json!({ "value": value }),
            Err(e) => json!({ "error": e.to_string() }),
        };
        println!("@ {answer}");
    }
    Ok(())
}
