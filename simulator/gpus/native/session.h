/* What all NVML functions share: the session with the board, handles, faults. */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>

#include "board.h"
#include "nvml_abi.h"

/* Which handles a function takes; others get NVML_ERROR_NOT_SUPPORTED. */
enum scope { ANY_DEVICE, GPU_ONLY, MIG_ONLY };

/* What a handle names: a private copy, consistent in itself, as of the start of the call. */
struct device {
    unsigned int gpu;
    int instance; /* index into state.mig, or WHOLE_GPU */
    struct gpu_identity identity;
    struct gpu_state state;
    const struct mig_instance *mig; /* into state; NULL for a whole GPU */
};

nvmlReturn_t session_open(const char *function);
nvmlReturn_t session_close(const char *function);
nvmlReturn_t enter_node(const char *function, bool arguments_valid, struct board_header *header);
nvmlReturn_t enter_device(const char *function, nvmlDevice_t handle, enum scope scope, bool arguments_valid,
                          struct device *device);
nvmlReturn_t read_events(struct event_log *log);
nvmlReturn_t read_processes(unsigned int gpu, struct process_list *list);
nvmlReturn_t read_utilization_samples(unsigned int gpu, struct utilization_buffer *buffer);
nvmlReturn_t read_process_samples(unsigned int gpu, struct process_buffer *buffer);

/* What the board says of a function (and a selector); NVML_ERROR_NOT_SUPPORTED where it says nothing. */
nvmlReturn_t read_answer(unsigned int gpu, const char *function, unsigned int selector, uint64_t value[MAX_VALUES]);

/* The GPU for which `matches` holds, or the MIG instance of that UUID; faults of that GPU apply. */
typedef bool gpu_predicate(unsigned int gpu, const struct gpu_identity *identity, const void *wanted);
nvmlReturn_t find_gpu(const char *function, gpu_predicate *matches, const void *wanted, nvmlDevice_t *handle);
nvmlReturn_t find_instance(const char *function, const char *uuid, nvmlDevice_t *handle);
nvmlDevice_t gpu_handle(unsigned int gpu);
nvmlDevice_t instance_handle(unsigned int gpu, unsigned int generation, unsigned int instance);
nvmlReturn_t copy_text(const char *text, char *out, unsigned int length);

/* Opens a function: `device` (or `node`) is then valid, or the function has returned NVML's error. */
#define ENTER_DEVICE(handle, scope, arguments_valid)                                              \
    struct device device;                                                                         \
    do {                                                                                          \
        nvmlReturn_t entered = enter_device(__func__, handle, scope, (arguments_valid), &device); \
        if (entered != NVML_SUCCESS) {                                                            \
            return entered;                                                                       \
        }                                                                                         \
    } while (0)

#define ENTER_NODE(arguments_valid)                                             \
    struct board_header node;                                                   \
    do {                                                                        \
        nvmlReturn_t entered = enter_node(__func__, (arguments_valid), &node);  \
        if (entered != NVML_SUCCESS) {                                          \
            return entered;                                                     \
        }                                                                       \
    } while (0)

#endif
