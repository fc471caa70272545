/* Counts the bytes that torch's CPU allocator holds: the oracle for zerolab.runtime.memory.

   Preloaded, it stands before the C library's posix_memalign, which is what that allocator calls,
   and before free. Each block's size is kept in a table, so the count is of bytes asked for. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>

extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

#define SLOTS (1u << 20)
#define TOMB ((void *)1)
static struct { void *block; size_t size; } table[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long live, peak;

static size_t home(void *block) { return ((uintptr_t)block >> 6) * 2654435761u & (SLOTS - 1); }

static void record(void *block, size_t size) {
    size_t at = home(block);
    while (table[at].block && table[at].block != TOMB) at = (at + 1) & (SLOTS - 1);
    table[at].block = block;
    table[at].size = size;
    live += (long)size;
    if (live > peak) peak = live;
}

static void forget(void *block) {
    for (size_t at = home(block); table[at].block; at = (at + 1) & (SLOTS - 1))
        if (table[at].block == block) {
            table[at].block = TOMB;
            live -= (long)table[at].size;
            return;
        }
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    void *block = __libc_memalign(alignment, size);
    if (!block) return ENOMEM;
    pthread_mutex_lock(&lock);
    record(block, size);
    pthread_mutex_unlock(&lock);
    *out = block;
    return 0;
}

void free(void *block) {
    if (!block) return;
    if (((uintptr_t)block & 63) == 0) { /* torch aligns to 64; nothing else is in the table */
        pthread_mutex_lock(&lock);
        forget(block);
        pthread_mutex_unlock(&lock);
    }
    __libc_free(block);
}

long oracle_live(void) { return live; }
long oracle_peak(void) { return peak; }
void oracle_reset_peak(void) { peak = live; }
