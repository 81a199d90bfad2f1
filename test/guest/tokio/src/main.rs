//! A host on tokio: two NIXL agents write all the time, and children of tokio's process driver come and go. argv: the backend, seconds, and
//! how tokio learns of a child's end: "pidfd", or "sigchld", where the kernel refuses pidfd_open.
//! It prints "@done TRANSFERS CHILDREN" when no child's end is lost.

use std::error::Error;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nixl_sys::{Agent, MemType, MemoryRegion, NixlDescriptor, RegistrationHandle, XferDescList, XferOp, XferRequest};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

type Failure = Box<dyn Error + Send + Sync>;

const SIZE: usize = 1 << 20;
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

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

/// In the order in which they must go.
struct End {
    _registered: RegistrationHandle,
    agent: Agent,
    memory: Memory,
}

impl End {
    fn new(name: &str, backend: &str) -> Result<End, Failure> {
        let agent = Agent::new(name)?;
        let (_, params) = agent.get_plugin_params(backend)?;
        agent.create_backend(backend, &params)?;
        let memory = Memory(vec![0; SIZE]);
        let registered = agent.register_memory(&memory, None)?;
        Ok(End {
            _registered: registered,
            agent,
            memory,
        })
    }

    fn list(&self) -> Result<XferDescList<'static>, Failure> {
        let mut list = XferDescList::new(MemType::Dram)?;
        list.add_desc(self.memory.0.as_ptr() as usize, SIZE, 0);
        Ok(list)
    }
}

fn write(from: &mut End, to: &End, request: &XferRequest, byte: u8) -> Result<(), Failure> {
    from.memory.0.fill(byte);
    from.agent.post_xfer_req(request, None)?;
    let end = Instant::now() + PATIENCE;
    while !from.agent.get_xfer_status(request)?.is_success() {
        if Instant::now() > end {
            return Err("a WRITE does not end".into());
        }
    }
    // The transfer has changed the bytes: they are read where they lie.
    let there = to.memory.0.as_ptr();
    if (0..SIZE).any(|i| unsafe { there.add(i).read_volatile() } != byte) {
        return Err("bytes differ".into());
    }
    Ok(())
}

/// Writes until it is told to end, on a thread of its own, and returns how often.
fn transfers(backend: &str, over: &AtomicBool) -> Result<u64, Failure> {
    let (mut alice, bob) = (End::new("alice", backend)?, End::new("bob", backend)?);
    let peer = alice.agent.load_remote_md(&bob.agent.get_local_md()?)?;
    let request = alice.agent.create_xfer_req(XferOp::Write, &alice.list()?, &bob.list()?, &peer, None)?;
    let mut done = 0;
    while !over.load(Ordering::Relaxed) {
        done += 1;
        write(&mut alice, &bob, &request, done as u8)?;
    }
    Ok(done)
}

async fn child(fails: bool) -> Result<(), Failure> {
    let mut child = Command::new(if fails { "/bin/false" } else { "/bin/true" }).spawn()?;
    let status: ExitStatus = timeout(PATIENCE, child.wait()).await.map_err(|_| "the end of a child is lost")??;
    if status.code() != Some(fails as i32) {
        return Err(format!("a child ended with {status}").into());
    }
    Ok(())
}

/// Refuses pidfd_open: tokio then waits for SIGCHLD.
fn refuse_pidfd() -> Result<(), Failure> {
    const RETURN_ERROR: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let statement = |code, k, jt, jf| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut code = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the call's number
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_pidfd_open as u32, 0, 1),
        statement(libc::BPF_RET, RETURN_ERROR, 0, 0),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &program,
            ) == 0
    };
    if set {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().into())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    if args[3] == "sigchld" {
        refuse_pidfd()?;
    }
    let over = Arc::new(AtomicBool::new(false));
    let writer = tokio::task::spawn_blocking({
        let (backend, over) = (args[1].clone(), over.clone());
        move || transfers(&backend, &over)
    });
    let (end, mut ended, mut running) = (Instant::now() + Duration::from_secs(args[2].parse()?), 0, JoinSet::new());
    let mut begun = 0;
    loop {
        while running.len() < AT_ONCE && Instant::now() < end && !writer.is_finished() {
            running.spawn(child(begun % 2 == 1));
            begun += 1;
        }
        let Some(one) = running.join_next().await else { break };
        one??;
        ended += 1;
    }
    over.store(true, Ordering::Relaxed);
    println!("@done {} {}", writer.await??, ended);
    Ok(())
}
