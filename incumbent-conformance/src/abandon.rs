//! Dropping a future where it waits.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Polls `future` at most `polls` times (at least once) and drops it where it then waits; `None` if it was not ready by then.
pub(crate) async fn after_polls<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|context| {
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled >= polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops `future` after `time`, wherever it is.
pub(crate) async fn after<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(time, future).await.ok()
}

/// Polls `future` once, then stops the whole thread for `time`, as a machine without a processor to spare would, then
/// goes on. What was answered in between is found late.
pub(crate) async fn starved<F: Future>(time: Duration, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut first = true;
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if std::mem::take(&mut first) && polled.is_pending() {
            std::thread::sleep(time);
            context.waker().wake_by_ref();
        }
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_future_is_dropped_at_the_wait_that_was_chosen() {
        let mut reached = 0;
        let three_waits = async |reached: &mut usize| {
            for _ in 0..3 {
                *reached += 1;
                yield_now().await;
            }
        };
        assert_eq!(after_polls(2, three_waits(&mut reached)).await, None);
        assert_eq!(reached, 2);
        assert_eq!(after_polls(4, three_waits(&mut reached)).await, Some(()));
    }

    #[tokio::test]
    async fn a_starved_future_still_ends() {
        starved(Duration::from_millis(1), yield_now()).await;
        starved(Duration::from_millis(1), async {}).await;
    }
}
