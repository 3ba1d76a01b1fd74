//! The whole path against TCP, in one run: RDMA WRITE between two soft NICs, and one TCP stream, over the
//! loopback interface with two threads each. Ratios are what counts; absolute numbers are those of one machine
//! at one moment.
//!
//! `cargo bench --bench path -- [--seconds S]` measures every path for S seconds (0.5), three times, in turns.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferroce::backend::{Loopback, Udp, UdpConfig};
use ferroce::{Access, ConnectOptions, Device, QpType, SendWr, WcStatus};

const MESSAGE: usize = 64 << 10;
const DEPTH: usize = 16;
const ROUNDS: usize = 3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Runs a path for so long, and says how many bytes per second it carried.
type Measure = fn(Duration) -> Result<f64>;

fn main() -> Result<()> {
    let seconds = seconds_asked_for()?;
    let span = Duration::from_secs_f64(seconds);
    let paths: [(&str, Measure); 3] = [
        ("tcp", tcp),
        ("udp", |span| write(two_udp()?, span)),
        ("loopback", |span| write(two_loopback()?, span)),
    ];
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for ((_, measure), rates) in paths.iter().zip(&mut rates) {
            rates.push(measure(span)?);
        }
    }
    let medians = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("path       WRITE of {} KiB, ratio to one TCP stream in the same run", MESSAGE >> 10);
    for ((name, _), rate) in paths.iter().zip(medians) {
        println!("{name:<9}  {:>6.3}   ({:.2} Gbit/s here)", rate / medians[0], rate * 8.0 / 1e9);
    }
    Ok(())
}

fn seconds_asked_for() -> Result<f64> {
    let mut args = std::env::args().skip_while(|arg| arg != "--seconds");
    match (args.next(), args.next()) {
        (Some(_), Some(value)) => {
            let seconds: f64 = value.parse().map_err(|_| "--seconds takes a number, such as 0.2")?;
            if (0.01..=60.0).contains(&seconds) { Ok(seconds) } else { Err("--seconds is 0.01 to 60".into()) }
        }
        (Some(_), None) => Err("--seconds takes a number, such as 0.2".into()),
        _ => Ok(0.5),
    }
}

/// Bytes per second of one TCP stream.
fn tcp(span: Duration) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; MESSAGE];
        while receiver.read(&mut buffer).is_ok_and(|n| n > 0) {}
    });
    let (start, data, mut bytes) = (Instant::now(), vec![7; MESSAGE], 0);
    while start.elapsed() < span {
        sender.write_all(&data)?;
        bytes += data.len();
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(sender);
    reader.join().map_err(|_| "the reader panicked")?;
    Ok(bytes as f64 / seconds)
}

fn two_udp() -> Result<[Device; 2]> {
    let open = || -> Result<Device> { Ok(Device::builder(Udp::open(&UdpConfig::default())?).open()?) };
    Ok([open()?, open()?])
}

fn two_loopback() -> Result<[Device; 2]> {
    let hub = Loopback::hub();
    let open =
        |address: [u8; 4]| -> Result<Device> { Ok(Device::builder(hub.attach(address.into())?).open()?) };
    Ok([open([127, 0, 0, 2])?, open([127, 0, 0, 3])?])
}

/// Bytes per second of WRITEs from one device to the other.
fn write([near, far]: [Device; 2], span: Duration) -> Result<f64> {
    let options = ConnectOptions { path_mtu: near.active_mtu(), ..ConnectOptions::default() };
    let (near_pd, far_pd) = (near.alloc_pd(), far.alloc_pd());
    let (near_cq, far_cq) = (near.create_cq(2 * DEPTH)?, far.create_cq(2 * DEPTH)?);
    let source = near_pd.register(vec![7; MESSAGE * DEPTH], Access::LOCAL_WRITE)?;
    let target = far_pd.register(vec![0; MESSAGE * DEPTH], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let near_qp = near_pd.create_qp(QpType::Rc, &near_cq, &near_cq).signal_all().build()?;
    let far_qp = far_pd.create_qp(QpType::Rc, &far_cq, &far_cq).build()?;
    let (near_end, far_end) = (near_qp.endpoint(1), far_qp.endpoint(1));
    let near_qp = near_qp.connect(far_end, &options)?;
    let _far_qp = far_qp.connect(near_end, &options)?;

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                far.drive();
            }
        });
        let moved = (|| -> Result<f64> {
            let (start, mut open, mut next, mut bytes) = (Instant::now(), 0, 0, 0);
            while start.elapsed() < span {
                while open < DEPTH {
                    let at = next % DEPTH * MESSAGE;
                    let wr = SendWr::write(
                        next as u64,
                        &[source.slice(at..at + MESSAGE)?],
                        target.addr_at(at),
                        target.rkey(),
                    );
                    near_qp.post_send_later(wr)?;
                    open += 1;
                    next += 1;
                }
                for wc in near_cq.poll(DEPTH) {
                    if wc.status != WcStatus::Success {
                        return Err(format!("a WRITE completed with {}", wc.status).into());
                    }
                    open -= 1;
                    bytes += MESSAGE;
                }
            }
            Ok(bytes as f64 / start.elapsed().as_secs_f64())
        })();
        stop.store(true, Ordering::Relaxed);
        moved
    })
}
