/* Counters, limits and modes that the board states outright, function by function; what it does not state, no card has. */
#include <time.h>

#include "session.h"

static nvmlReturn_t one(const struct device *device, const char *function, unsigned int selector, unsigned int *out) {
    uint64_t value[MAX_VALUES];
    nvmlReturn_t status = read_answer(device->gpu, function, selector, value);
    if (status == NVML_SUCCESS) {
        *out = (unsigned int)value[0];
    }
    return status;
}

static nvmlReturn_t two(const struct device *device, const char *function, unsigned int *first, unsigned int *second) {
    uint64_t value[MAX_VALUES];
    nvmlReturn_t status = read_answer(device->gpu, function, 0, value);
    if (status == NVML_SUCCESS) {
        *first = (unsigned int)value[0];
        *second = (unsigned int)value[1];
    }
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t handle, unsigned int *count) {
    ENTER_DEVICE(handle, GPU_ONLY, count != NULL);
    return one(&device, __func__, 0, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation) {
    ENTER_DEVICE(handle, GPU_ONLY, generation != NULL);
    return one(&device, __func__, 0, generation);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation) {
    ENTER_DEVICE(handle, GPU_ONLY, generation != NULL);
    return one(&device, __func__, 0, generation);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t handle, unsigned int *lanes) {
    ENTER_DEVICE(handle, GPU_ONLY, lanes != NULL);
    return one(&device, __func__, 0, lanes);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t handle, unsigned int *lanes) {
    ENTER_DEVICE(handle, GPU_ONLY, lanes != NULL);
    return one(&device, __func__, 0, lanes);
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t handle, unsigned int *percent) {
    ENTER_DEVICE(handle, GPU_ONLY, percent != NULL);
    return one(&device, __func__, 0, percent);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, unsigned int which, unsigned int *celsius) {
    ENTER_DEVICE(handle, GPU_ONLY, celsius != NULL && which < NVML_TEMPERATURE_THRESHOLDS);
    return one(&device, __func__, which, celsius);
}

/* Utilization and the period it was measured over, in microseconds; documented: not available with MIG enabled. */
EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned int *percent, unsigned int *period) {
    ENTER_DEVICE(handle, GPU_ONLY, percent != NULL && period != NULL);
    return device.state.mig_count != 0 ? NVML_ERROR_NOT_SUPPORTED : two(&device, __func__, percent, period);
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned int *percent, unsigned int *period) {
    ENTER_DEVICE(handle, GPU_ONLY, percent != NULL && period != NULL);
    return device.state.mig_count != 0 ? NVML_ERROR_NOT_SUPPORTED : two(&device, __func__, percent, period);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending) {
    ENTER_DEVICE(handle, GPU_ONLY, current != NULL && pending != NULL);
    return two(&device, __func__, current, pending);
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory) {
    ENTER_DEVICE(handle, GPU_ONLY, memory != NULL);
    uint64_t value[MAX_VALUES];
    nvmlReturn_t status = read_answer(device.gpu, __func__, 0, value);
    if (status == NVML_SUCCESS) {
        *memory = (nvmlBAR1Memory_t){.bar1Total = value[0], .bar1Free = value[0] - value[1], .bar1Used = value[1]};
    }
    return status;
}

/* Unless the board says otherwise, a card that does nothing has lowered its clocks for that reason and no other. */
static unsigned long long event_reasons(unsigned int gpu, bool is_idle) {
    uint64_t value[MAX_VALUES];
    if (read_answer(gpu, "nvmlDeviceGetCurrentClocksEventReasons", 0, value) == NVML_SUCCESS) {
        return value[0];
    }
    return is_idle ? NVML_CLOCKS_EVENT_REASON_GPU_IDLE : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long *reasons) {
    ENTER_DEVICE(handle, GPU_ONLY, reasons != NULL);
    *reasons = event_reasons(device.gpu, device.state.gpu_util_percent == 0);
    return NVML_SUCCESS;
}

/* The name of the same before driver 535. */
EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle, unsigned long long *reasons) {
    ENTER_DEVICE(handle, GPU_ONLY, reasons != NULL);
    *reasons = event_reasons(device.gpu, device.state.gpu_util_percent == 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t handle, nvmlGridLicensableFeaturesHead_t *features) {
    ENTER_DEVICE(handle, GPU_ONLY, features != NULL);
    uint64_t value[MAX_VALUES];
    nvmlReturn_t status = read_answer(device.gpu, __func__, 0, value);
    if (status == NVML_SUCCESS) {
        features->isGridLicenseSupported = (int)value[0];
        features->licensableFeaturesCount = value[0] != 0;
        features->firstFeatureCode = 1;
        features->firstFeatureState = (unsigned int)value[1];
    }
    return status;
}

/* Documented: the traffic of the last 20 ms, in KB/s; the real driver takes them to count. */
EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned int counter, unsigned int *kilobytes) {
    ENTER_DEVICE(handle, GPU_ONLY, kilobytes != NULL && counter < NVML_PCIE_COUNTERS);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    uint64_t value[MAX_VALUES];
    *kilobytes = read_answer(device.gpu, __func__, counter, value) == NVML_SUCCESS ? (unsigned int)value[0] : 0;
    return NVML_SUCCESS;
}
