//! Counts the memory that the current thread holds, for the promises on memory.
#![expect(
    unsafe_code,
    reason = "a global allocator is an unsafe trait; this one only counts and passes on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counters any more, and nobody asks for them.
    let live = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        live.get()
    });
    if let Ok(live) = live {
        let _: Result<(), _> = PEAK.try_with(|peak| peak.set(peak.get().max(live)));
    }
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both are there while the content moves.
        count(new_size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Bytes that this thread has allocated and not freed.
pub fn live_bytes() -> isize {
    LIVE.with(Cell::get)
}

/// The most that has been live since the last call of this.
pub fn take_peak_bytes() -> isize {
    PEAK.with(|peak| peak.replace(live_bytes()))
}
