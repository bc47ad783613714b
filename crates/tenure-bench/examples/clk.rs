use tenure::clock::{Clock, SystemClock};
fn main(){ let s=std::time::Instant::now(); let mut x=0; for _ in 0..5_000_000 { x ^= SystemClock.now().0; } println!("boot {:?} {x}", s.elapsed()/5_000_000);
let s=std::time::Instant::now(); for _ in 0..5_000_000 { x ^= SystemClock.wall_micros(); } println!("wall {:?} {x}", s.elapsed()/5_000_000);
let s=std::time::Instant::now(); for _ in 0..5_000_000 { x ^= rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec as u64; } println!("mono {:?} {x}", s.elapsed()/5_000_000);
}
