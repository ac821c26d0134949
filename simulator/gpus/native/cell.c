/* Values that one process writes and others read, without locks and without torn reads. */
#include <stdint.h>

#include "board.h"
#include "nvml_abi.h"

/* Both sides copy whole words, so that no compiler may split or merge an access that another process sees. */
typedef uint64_t __attribute__((may_alias)) word;

_Static_assert(sizeof(struct gpu_state) % sizeof(word) == 0, "cells are copied by words");
_Static_assert(sizeof(struct process_list) % sizeof(word) == 0, "cells are copied by words");
_Static_assert(sizeof(struct utilization_buffer) % sizeof(word) == 0, "cells are copied by words");
_Static_assert(sizeof(struct process_buffer) % sizeof(word) == 0, "cells are copied by words");
_Static_assert(sizeof(struct answer_list) % sizeof(word) == 0, "cells are copied by words");
_Static_assert(sizeof(struct fault_list) % sizeof(word) == 0, "cells are copied by words");

/* Copies what is current: all of it, or, where the size of its items is given, only as many of them as it counts. */
static void read_words(const uint64_t *sequence, const void *copies, void *value, size_t size, size_t item_size) {
    size_t most = size / sizeof(word);
    word *to = value;
    uint64_t before, after;
    do {
        before = __atomic_load_n(sequence, __ATOMIC_ACQUIRE);
        const word *from = (const word *)copies + (before & 1) * most;
        size_t words = most;
        if (item_size != 0) {
            uint64_t wanted = 1 + __atomic_load_n(&from[0], __ATOMIC_RELAXED) * (item_size / sizeof(word));
            words = wanted < most ? wanted : most; /* more cannot be, but while the copy is being written */
        }
        for (size_t i = 0; i < words; i++) {
            to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        }
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        after = __atomic_load_n(sequence, __ATOMIC_RELAXED);
    } while (before != after);
}

void cell_read(const uint64_t *sequence, const void *copies, void *value, size_t size) {
    read_words(sequence, copies, value, size, 0);
}

void cell_read_list(const uint64_t *sequence, const void *copies, void *list, size_t size, size_t item_size) {
    read_words(sequence, copies, list, size, item_size);
}

/* For the writer in Python, which has no memory barriers. One thread at a time per cell. */
EXPORT void simulator_publish(uint64_t *sequence, void *copies, const void *value, size_t size) {
    size_t words = size / sizeof(word);
    uint64_t next = __atomic_load_n(sequence, __ATOMIC_RELAXED) + 1;
    word *to = (word *)copies + (next & 1) * words;
    const word *from = value;
    /* No reader may see a word of the new copy before the sequence that sent it to the other one. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (size_t i = 0; i < words; i++) {
        __atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
    }
    __atomic_store_n(sequence, next, __ATOMIC_RELEASE);
}
