/* NVML's initialisation and its questions about the node. */
#include <stdio.h>

#include "session.h"

EXPORT nvmlReturn_t nvmlInit_v2(void) {
    return session_open(__func__);
}

/* The flags only say which hardware may be missing or left unattached: nothing here is either. */
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return session_open(__func__);
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    return session_close(__func__);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    static const struct {
        int code;
        const char *words;
    } table[] = {
        {0, "Success"},
        {1, "Uninitialized"},
        {2, "Invalid Argument"},
        {3, "Not Supported"},
        {4, "Insufficient Permissions"},
        {5, "Already Initialized"},
        {6, "Not Found"},
        {7, "Insufficient Size"},
        {8, "Insufficient External Power"},
        {9, "Driver Not Loaded"},
        {10, "Timeout"},
        {11, "Interrupt Request Issue"},
        {12, "NVML Shared Library Not Found"},
        {13, "Function Not Found"},
        {14, "Corrupted infoROM"},
        {15, "GPU is lost"},
        {16, "GPU requires reset"},
        {17, "GPU access blocked by the operating system"},
        {18, "Driver/library version mismatch"},
        {19, "In use by another client"},
        {20, "Insufficient Memory"},
        {21, "No data"},
        {23, "Insufficient Resources"},
        {25, "Argument version mismatch"},
        {26, "Deprecated"},
        {27, "Not Ready"},
        {28, "GPU not found"},
        {29, "Invalid state"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].code == (int)result) {
            return table[i].words;
        }
    }
    return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    ENTER_NODE(version != NULL);
    return copy_text(node.driver_version, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    ENTER_NODE(version != NULL);
    char text[sizeof node.driver_version + 16];
    snprintf(text, sizeof text, "%u.%s", node.cuda_version / 1000, node.driver_version);
    return copy_text(text, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER_NODE(version != NULL);
    *version = (int)node.cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER_NODE(version != NULL);
    *version = (int)node.cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    ENTER_NODE(count != NULL);
    *count = node.gpu_count;
    return NVML_SUCCESS;
}
