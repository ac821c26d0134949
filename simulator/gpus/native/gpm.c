/*
 * GPU performance monitoring, of Hopper and later: a sample is a copy of counters, and a metric what happened between two
 * of them. Here a sample holds how long the card had worked, where the board counts that; of all else the rates of its
 * instant, of which a metric is the mean of two.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "session.h"

enum { METRICS = 64 };

/* Of a card at work; what it does in tensor cores and with its memory is the same here. */
static const double WORK_PER_ACTIVITY = 0.55;
static const double TRAFFIC_MIB_PER_WORK = 16.0;

/* Engines of a whole Hopper card: video decoders, JPEG decoders, optical flow. Nothing here makes them work. */
enum { DECODERS = 7, JPEGS = 7, OFAS = 1 };

struct nvml_gpm_sample {
    long long taken_ns; /* 0 before the first time */
    struct busy_counter busy;
    double rate[METRICS]; /* NaN where the card does not say */
};

static bool has_gpm(const struct device *device) {
    return device->identity.architecture >= NVML_ARCH_HOPPER;
}

static bool has_engine(const struct device *device, unsigned int metric) {
    const struct mig_instance *mig = device->mig;
    unsigned int decoders = mig == NULL ? DECODERS : mig->decoders;
    unsigned int jpegs = mig == NULL ? JPEGS : mig->jpegs;
    unsigned int ofas = mig == NULL ? OFAS : mig->ofas;
    return (metric >= NVML_GPM_NVDEC_0_UTIL && metric < NVML_GPM_NVDEC_0_UTIL + decoders) ||
           (metric >= NVML_GPM_NVJPG_0_UTIL && metric < NVML_GPM_NVJPG_0_UTIL + jpegs) ||
           (metric >= NVML_GPM_NVOFA_0_UTIL && metric < NVML_GPM_NVOFA_0_UTIL + ofas);
}

/* What the board says outright, for a GPU or one of its instances, stands before what follows from the readings. */
static double rate_of(const struct device *device, unsigned int metric) {
    uint64_t value[MAX_VALUES];
    unsigned int selector = metric | (unsigned int)(device->instance + 1) << 16;
    if (read_answer(device->gpu, "nvmlGpmMetricsGet", selector, value) == NVML_SUCCESS) {
        double stated;
        memcpy(&stated, &value[0], sizeof stated);
        return stated;
    }
    bool whole = device->mig == NULL;
    double active = whole ? device->state.gpu_util_percent : device->mig->activity_percent;
    double work = whole ? device->state.memory_util_percent : active * WORK_PER_ACTIVITY;
    switch (metric) {
    case NVML_GPM_GRAPHICS_UTIL:
    case NVML_GPM_SM_UTIL:
        return active;
    case NVML_GPM_SM_OCCUPANCY:
    case NVML_GPM_ANY_TENSOR_UTIL:
    case NVML_GPM_HMMA_TENSOR_UTIL:
    case NVML_GPM_DRAM_BW_UTIL:
        return work;
    case NVML_GPM_INTEGER_UTIL:
    case NVML_GPM_FP32_UTIL:
        return work / 4;
    case NVML_GPM_FP16_UTIL:
    case NVML_GPM_FP64_UTIL:
    case NVML_GPM_DFMA_TENSOR_UTIL:
    case NVML_GPM_IMMA_TENSOR_UTIL:
        return 0;
    case NVML_GPM_PCIE_TX_PER_SEC:
    case NVML_GPM_PCIE_RX_PER_SEC:
    case NVML_GPM_NVLINK_TOTAL_RX_PER_SEC:
    case NVML_GPM_NVLINK_TOTAL_TX_PER_SEC:
        return TRAFFIC_MIB_PER_WORK * work;
    default:
        return has_engine(device, metric) ? 0 : NAN;
    }
}

static nvmlReturn_t take(const struct device *device, nvmlGpmSample_t sample) {
    if (!has_gpm(device)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    sample->taken_ns = (long long)now.tv_sec * 1000000000 + now.tv_nsec;
    sample->busy = device->mig == NULL ? device->state.busy : device->mig->busy;
    for (unsigned int metric = 0; metric < METRICS; metric++) {
        sample->rate[metric] = rate_of(device, metric);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t *support) {
    ENTER_DEVICE(handle, ANY_DEVICE, support != NULL);
    if (support->version != NVML_GPM_SUPPORT_VERSION) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    support->isSupportedDevice = has_gpm(&device);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    ENTER_NODE(sample != NULL);
    *sample = calloc(1, sizeof **sample);
    return *sample == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    ENTER_NODE(sample != NULL);
    free(sample);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t handle, nvmlGpmSample_t sample) {
    ENTER_DEVICE(handle, ANY_DEVICE, sample != NULL);
    return take(&device, sample);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t handle, unsigned int gpu_instance_id, nvmlGpmSample_t sample) {
    ENTER_DEVICE(handle, GPU_ONLY, sample != NULL);
    for (unsigned int i = 0; i < device.state.mig_count; i++) {
        if (device.state.mig[i].gpu_instance_id == gpu_instance_id) {
            device.instance = (int)i;
            device.mig = &device.state.mig[i];
            return take(&device, sample);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static bool counted(const struct nvml_gpm_sample *first, const struct nvml_gpm_sample *second) {
    return first->busy.at_us != 0 && second->busy.at_us != 0;
}

static bool in_order(const struct nvml_gpm_sample *first, const struct nvml_gpm_sample *second) {
    bool taken = first->taken_ns != 0 && first->taken_ns < second->taken_ns;
    return taken && (!counted(first, second) || first->busy.at_us < second->busy.at_us);
}

/* What happened between two samples that are in order; NaN where the card does not say. */
static double metric_of(const struct nvml_gpm_sample *first, const struct nvml_gpm_sample *second, unsigned int metric) {
    bool activity = metric == NVML_GPM_GRAPHICS_UTIL || metric == NVML_GPM_SM_UTIL;
    if (activity && counted(first, second)) {
        double busy_us = (double)second->busy.busy_us - (double)first->busy.busy_us;
        return 100 * busy_us / (double)(second->busy.at_us - first->busy.at_us);
    }
    return metric < METRICS ? (first->rate[metric] + second->rate[metric]) / 2 : NAN;
}

/* Succeeds as a whole; each metric carries its own result. */
EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request) {
    ENTER_NODE(request != NULL);
    if (request->version != NVML_GPM_METRICS_GET_VERSION) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    const struct nvml_gpm_sample *first = request->sample1, *second = request->sample2;
    if (first == NULL || second == NULL || !in_order(first, second)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned int i = 0; i < request->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &request->metrics[i];
        metric->value = metric_of(first, second, metric->metricId);
        metric->nvmlReturn = isnan(metric->value) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    }
    return NVML_SUCCESS;
}
