/*
 * The board: one file per simulated node, mapped by its one writer (a Python process, see board.py) and by any
 * number of readers (this library in other processes). layout.py mirrors these structures; LAYOUT_VERSION is a hash
 * of this file, so that a reader and a writer built from different layouts refuse each other.
 */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

enum {
    MAX_GPUS = 16,
    MAX_INSTANCES = 7,
    MAX_PROCESSES = 512,
    MAX_SAMPLES = 120,
    MAX_PROCESS_SAMPLES = 8192,
    MAX_FAULTS = 32,
    MAX_ANSWERS = 128,
    MAX_EVENTS = 64,
    MAX_VALUES = 4,
    ANY_GPU = -1,
    WHOLE_GPU = -1,
};
enum process_kind { PROCESS_COMPUTE = 0, PROCESS_GRAPHICS = 1, PROCESS_MPS = 2 };

#define BOARD_MAGIC UINT64_C(0x314d49534c4d564e) /* "NVMLSIM1" */

struct board_header {
    uint64_t magic;
    uint64_t layout_version;
    uint32_t gpu_count;
    uint32_t cuda_version;
    char driver_version[80];
};

/* What never changes while a driver is loaded. */
struct gpu_identity {
    char name[64];
    char uuid[48];
    char serial[32];
    char vbios[32];
    uint64_t memory_bytes;
    uint64_t reserved_bytes;
    uint32_t architecture;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t pci_bus;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t min_power_mw;
    uint32_t max_power_mw;
    uint32_t max_sm_clock_mhz;
    uint32_t max_mem_clock_mhz;
    uint32_t memory_temperature;
    uint32_t mig_capable;
};

/* For how long something has worked, as counted until `at_us`; 0 there: nobody counts. */
struct busy_counter {
    uint64_t busy_us;
    uint64_t at_us;
};

struct mig_instance {
    char uuid[48];
    char profile[16];
    uint64_t memory_bytes;
    uint64_t memory_used_bytes;
    uint32_t gpu_instance_id;
    uint32_t slices;
    uint32_t multiprocessors;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t activity_percent;
    uint32_t profile_id;
    uint32_t start; /* of its memory slices */
    uint32_t size;
    uint32_t unused;
    struct busy_counter busy;
};

struct gpu_state {
    uint64_t memory_used_bytes;
    uint64_t energy_mj;
    uint32_t gpu_util_percent;
    uint32_t memory_util_percent;
    uint32_t power_mw;
    uint32_t sm_clock_mhz;
    uint32_t mem_clock_mhz;
    int32_t temperature_c;
    int32_t memory_temperature_c;
    uint32_t mig_generation; /* grows with each reconfiguration: handles of the previous one are void */
    uint64_t mig_count;      /* 0: MIG is off */
    struct busy_counter busy;
    struct mig_instance mig[MAX_INSTANCES];
};

struct gpu_process {
    uint64_t memory_used_bytes;
    uint32_t pid;
    uint32_t kind;
    int32_t instance; /* index into gpu_state.mig, or WHOLE_GPU */
    uint32_t unused;
};

struct process_list {
    uint64_t count;
    struct gpu_process process[MAX_PROCESSES];
};

/* In ascending order of time, of Unix time in microseconds. */
struct utilization_sample {
    uint64_t at_us;
    uint64_t percent;
};

struct utilization_buffer {
    uint64_t supported; /* of the samples of processes, too */
    uint64_t count;
    struct utilization_sample sample[MAX_SAMPLES];
};

struct process_sample {
    uint64_t at_us;
    uint32_t pid;
    uint32_t sm_percent;
    uint32_t memory_percent;
    uint32_t encoder_percent;
    uint32_t decoder_percent;
    uint32_t unused;
};

struct process_buffer {
    uint64_t count;
    struct process_sample sample[MAX_PROCESS_SAMPLES];
};

/* What a function returns, or, where it is nvmlDeviceGetFieldValues, one of its fields. */
struct answer {
    char function[56];
    uint32_t selector; /* the argument that selects among several (a threshold, an error type), or the field's id */
    uint32_t unused;
    uint64_t value[MAX_VALUES];
};

struct answer_list {
    uint64_t count;
    struct answer answer[MAX_ANSWERS];
};

struct gpu_event {
    uint32_t gpu;
    uint32_t xid;
    uint32_t gpu_instance_id; /* or NVML_NO_INSTANCE */
    uint32_t unused;
};

/* The last events; number n of all stands at n modulo MAX_EVENTS. */
struct event_log {
    uint64_t count;
    struct gpu_event event[MAX_EVENTS];
};

struct fault {
    char function[56]; /* an NVML function, or "*": every call about that GPU */
    int32_t gpu;       /* or ANY_GPU */
    int32_t code;      /* what the call returns; after a hang, once cleared */
    uint64_t hang;
};

struct fault_list {
    uint64_t count;
    struct fault fault[MAX_FAULTS];
};

/*
 * A cell holds a value twice. The writer fills the copy that is not current, then advances the sequence: whoever
 * dies halfway leaves the current copy whole, and a reader repeats only when it was overtaken (see cell.c).
 */
#define CELL(type)         \
    struct {               \
        uint64_t sequence; \
        type copy[2];      \
    }

struct board {
    struct board_header header;
    struct gpu_identity identity[MAX_GPUS];
    CELL(struct fault_list) faults;
    CELL(struct event_log) events;
    struct {
        CELL(struct gpu_state) state;
        CELL(struct process_list) processes;
        CELL(struct answer_list) answers;
        CELL(struct utilization_buffer) utilization;
        CELL(struct process_buffer) process_samples;
    } gpu[MAX_GPUS];
};

void cell_read(const uint64_t *sequence, const void *copies, void *value, size_t size);

/* Of a value that is a count and then so many items: what lies behind them is neither read nor written. */
void cell_read_list(const uint64_t *sequence, const void *copies, void *list, size_t size, size_t item_size);

#define READ_CELL(cell, value) cell_read(&(cell).sequence, (cell).copy, (value), sizeof *(value))
#define READ_LIST(cell, list, items) \
    cell_read_list(&(cell).sequence, (cell).copy, (list), sizeof *(list), sizeof (list)->items[0])

#endif
