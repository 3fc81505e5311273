//! Holds signals back for a moment.
#![expect(unsafe_code, reason = "neither std nor rustix changes the mask of signals")]

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `work` while all signals to this thread are held back. Those that came meanwhile arrive after it.
pub fn hold_signals_back<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both point to a set of signals, and each is written before it is read; the call can only fail for its first
    // argument, which is right.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let done = work();
    // SAFETY: the first call has written it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_signal_meanwhile_arrives_afterwards() {
        let arrived = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(libc::SIGURG, arrived.clone()).unwrap();
        hold_signals_back(|| {
            signal_hook::low_level::raise(libc::SIGURG).unwrap();
            assert!(!arrived.load(Ordering::SeqCst));
        });
        assert!(arrived.load(Ordering::SeqCst));
    }
}
