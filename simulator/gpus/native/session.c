/*
 * The session with the board: reference-counted initialisation, handles, injected faults.
 *
 * No lock is held while a call is under way, so that a call which hangs blocks its own thread alone; a mapping lives
 * until the last call in it has returned, so that nvmlShutdown is safe beside a call which hangs.
 */
#include "session.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct mapping {
    const struct board *board;
    unsigned int users;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *current;
static unsigned int initialisations;

static void unmap(struct mapping *mapping) {
    munmap((void *)mapping->board, sizeof(struct board));
    free(mapping);
}

static struct mapping *acquire(void) {
    pthread_mutex_lock(&lock);
    struct mapping *mapping = current;
    if (mapping != NULL) {
        mapping->users++;
    }
    pthread_mutex_unlock(&lock);
    return mapping;
}

static void release(struct mapping *mapping) {
    pthread_mutex_lock(&lock);
    bool last = --mapping->users == 0 && mapping != current;
    pthread_mutex_unlock(&lock);
    if (last) {
        unmap(mapping);
    }
}

static nvmlReturn_t map_board(struct mapping **out) {
    const char *path = getenv("SIMULATOR_NVML_BOARD");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    struct stat status;
    bool whole = fstat(file, &status) == 0 && status.st_size == (off_t)sizeof(struct board);
    void *address = whole ? mmap(NULL, sizeof(struct board), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (address == MAP_FAILED) {
        return whole ? NVML_ERROR_MEMORY : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    const struct board *board = address;
    struct mapping *mapping = malloc(sizeof *mapping);
    if (mapping == NULL || board->header.magic != BOARD_MAGIC || board->header.layout_version != LAYOUT_VERSION) {
        munmap(address, sizeof(struct board));
        nvmlReturn_t why = mapping == NULL ? NVML_ERROR_MEMORY : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        free(mapping);
        return why;
    }
    *mapping = (struct mapping){.board = board, .users = 0};
    *out = mapping;
    return NVML_SUCCESS;
}

static const struct fault *matching_fault(const struct fault_list *list, const char *function, int gpu) {
    for (uint64_t i = 0; i < list->count; i++) {
        const struct fault *fault = &list->fault[i];
        bool named = strcmp(fault->function, function) == 0;
        bool everything = gpu != ANY_GPU && strcmp(fault->function, "*") == 0;
        if ((named || everything) && (fault->gpu == ANY_GPU || fault->gpu == gpu)) {
            return fault;
        }
    }
    return NULL;
}

/* What the board says this call is to return; blocks while it says that the call hangs. */
static nvmlReturn_t injected_fault(const struct board *board, const char *function, int gpu) {
    static const struct timespec pause = {.tv_nsec = 2000000};
    int after_hang = NVML_SUCCESS;
    for (;;) {
        struct fault_list list;
        READ_CELL(board->faults, &list);
        const struct fault *fault = matching_fault(&list, function, gpu);
        if (fault == NULL) {
            return (nvmlReturn_t)after_hang;
        }
        if (!fault->hang) {
            return (nvmlReturn_t)fault->code;
        }
        after_hang = fault->code;
        nanosleep(&pause, NULL);
    }
}

nvmlReturn_t session_open(const char *function) {
    struct mapping *fresh;
    nvmlReturn_t status = map_board(&fresh);
    if (status != NVML_SUCCESS) {
        return status;
    }
    status = injected_fault(fresh->board, function, ANY_GPU);
    if (status != NVML_SUCCESS) {
        unmap(fresh);
        return status;
    }
    pthread_mutex_lock(&lock);
    bool first = initialisations++ == 0;
    if (first) {
        current = fresh;
    }
    pthread_mutex_unlock(&lock);
    if (!first) {
        unmap(fresh);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t session_close(const char *function) {
    nvmlReturn_t status = enter_node(function, true, NULL);
    if (status != NVML_SUCCESS) {
        return status;
    }
    struct mapping *unused = NULL;
    pthread_mutex_lock(&lock);
    if (initialisations == 0) {
        status = NVML_ERROR_UNINITIALIZED;
    } else if (--initialisations == 0) {
        unused = current->users == 0 ? current : NULL;
        current = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (unused != NULL) {
        unmap(unused);
    }
    return status;
}

nvmlReturn_t enter_node(const char *function, bool arguments_valid, struct board_header *header) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t status = NVML_ERROR_INVALID_ARGUMENT;
    if (arguments_valid) {
        status = injected_fault(mapping->board, function, ANY_GPU);
    }
    if (header != NULL) {
        *header = mapping->board->header;
    }
    release(mapping);
    return status;
}

/* Handles: a tag that tells them from stray pointers, the MIG generation, the GPU, and the instance plus one. */
#define HANDLE_TAG UINT64_C(0x5347)
_Static_assert(sizeof(nvmlDevice_t) == sizeof(uint64_t), "handles hold 64 bits");

nvmlDevice_t instance_handle(unsigned int gpu, unsigned int generation, unsigned int instance) {
    uint64_t bits = (HANDLE_TAG << 48) | ((uint64_t)generation << 16) | ((uint64_t)gpu << 8) | (instance + 1);
    return (nvmlDevice_t)(uintptr_t)bits;
}

nvmlDevice_t gpu_handle(unsigned int gpu) {
    return (nvmlDevice_t)(uintptr_t)((HANDLE_TAG << 48) | ((uint64_t)gpu << 8));
}

/* Fills in all that the handle says by itself; false if it is none of ours. */
static bool decode(const struct board *board, nvmlDevice_t handle, struct device *device) {
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    device->gpu = (bits >> 8) & 0xFF;
    device->instance = (int)(bits & 0xFF) - 1;
    return bits >> 48 == HANDLE_TAG && device->gpu < board->header.gpu_count && device->instance < MAX_INSTANCES;
}

static nvmlReturn_t resolve(const struct board *board, nvmlDevice_t handle, enum scope scope, struct device *device) {
    device->identity = board->identity[device->gpu];
    device->mig = NULL;
    READ_CELL(board->gpu[device->gpu].state, &device->state);
    if (device->instance != WHOLE_GPU) {
        uint32_t generation = (uint32_t)((uint64_t)(uintptr_t)handle >> 16);
        if (generation != device->state.mig_generation || (uint64_t)device->instance >= device->state.mig_count) {
            return NVML_ERROR_INVALID_ARGUMENT; /* destroyed by a reconfiguration */
        }
        device->mig = &device->state.mig[device->instance];
    }
    bool fits = scope == ANY_DEVICE || (scope == MIG_ONLY) == (device->mig != NULL);
    return fits ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t enter_device(const char *function, nvmlDevice_t handle, enum scope scope, bool arguments_valid,
                          struct device *device) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t status = NVML_ERROR_INVALID_ARGUMENT;
    if (decode(mapping->board, handle, device) && arguments_valid) {
        status = injected_fault(mapping->board, function, (int)device->gpu);
    }
    if (status == NVML_SUCCESS) {
        status = resolve(mapping->board, handle, scope, device);
    }
    release(mapping);
    return status;
}

nvmlReturn_t read_processes(unsigned int gpu, struct process_list *list) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    READ_LIST(mapping->board->gpu[gpu].processes, list, process);
    release(mapping);
    return NVML_SUCCESS;
}

nvmlReturn_t read_utilization_samples(unsigned int gpu, struct utilization_buffer *buffer) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    READ_CELL(mapping->board->gpu[gpu].utilization, buffer);
    release(mapping);
    return NVML_SUCCESS;
}

nvmlReturn_t read_process_samples(unsigned int gpu, struct process_buffer *buffer) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    READ_LIST(mapping->board->gpu[gpu].process_samples, buffer, sample);
    release(mapping);
    return NVML_SUCCESS;
}

nvmlReturn_t read_events(struct event_log *log) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    READ_CELL(mapping->board->events, log);
    release(mapping);
    return NVML_SUCCESS;
}

nvmlReturn_t read_answer(unsigned int gpu, const char *function, unsigned int selector, uint64_t value[MAX_VALUES]) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    struct answer_list list;
    READ_CELL(mapping->board->gpu[gpu].answers, &list);
    release(mapping);
    for (uint64_t i = 0; i < list.count; i++) {
        const struct answer *answer = &list.answer[i];
        if (answer->selector == selector && strcmp(answer->function, function) == 0) {
            memcpy(value, answer->value, sizeof answer->value);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t find_gpu(const char *function, gpu_predicate *matches, const void *wanted, nvmlDevice_t *handle) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t status = NVML_ERROR_NOT_FOUND;
    for (unsigned int gpu = 0; gpu < mapping->board->header.gpu_count; gpu++) {
        if (matches(gpu, &mapping->board->identity[gpu], wanted)) {
            status = injected_fault(mapping->board, function, (int)gpu);
            *handle = gpu_handle(gpu);
            break;
        }
    }
    release(mapping);
    return status;
}

nvmlReturn_t find_instance(const char *function, const char *uuid, nvmlDevice_t *handle) {
    struct mapping *mapping = acquire();
    if (mapping == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t status = NVML_ERROR_NOT_FOUND;
    for (unsigned int gpu = 0; gpu < mapping->board->header.gpu_count && status == NVML_ERROR_NOT_FOUND; gpu++) {
        struct gpu_state state;
        READ_CELL(mapping->board->gpu[gpu].state, &state);
        for (unsigned int i = 0; i < state.mig_count; i++) {
            if (strcmp(state.mig[i].uuid, uuid) == 0) {
                status = injected_fault(mapping->board, function, (int)gpu);
                *handle = instance_handle(gpu, state.mig_generation, i);
                break;
            }
        }
    }
    release(mapping);
    return status;
}

nvmlReturn_t copy_text(const char *text, char *out, unsigned int length) {
    size_t size = strlen(text) + 1;
    if (size > length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(out, text, size);
    return NVML_SUCCESS;
}
