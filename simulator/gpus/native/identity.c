/* Who a device is: handles, names, the PCI bus, the chip. */
#include <stdio.h>
#include <string.h>

#include "session.h"

static bool has_index(unsigned int gpu, const struct gpu_identity *identity, const void *wanted) {
    (void)identity;
    return gpu == *(const unsigned int *)wanted;
}

static bool has_uuid(unsigned int gpu, const struct gpu_identity *identity, const void *wanted) {
    (void)gpu;
    return strcmp(identity->uuid, wanted) == 0;
}

static bool has_bus(unsigned int gpu, const struct gpu_identity *identity, const void *wanted) {
    (void)gpu;
    return identity->pci_bus == *(const unsigned int *)wanted;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (device == NULL) {
        return enter_node(__func__, false, NULL);
    }
    nvmlReturn_t status = find_gpu(__func__, has_index, &index, device);
    return status == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : status;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    if (uuid == NULL || device == NULL) {
        return enter_node(__func__, false, NULL);
    }
    if (strncmp(uuid, "MIG-", 4) == 0) {
        return find_instance(__func__, uuid, device);
    }
    return find_gpu(__func__, has_uuid, uuid, device);
}

/* All simulated GPUs are function 0 of device 0 of a bus of their own in domain 0; the domain may be left out. */
static bool parse_bus_id(const char *text, unsigned int *bus) {
    unsigned int domain = 0, slot, function;
    int end = 0;
    bool parsed = sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, bus, &slot, &function, &end) == 4;
    if (!parsed) {
        domain = 0;
        parsed = sscanf(text, "%2x:%2x.%1x%n", bus, &slot, &function, &end) == 3;
    }
    return parsed && text[end] == '\0' && domain == 0 && slot == 0 && function == 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    if (bus_id == NULL || device == NULL) {
        return enter_node(__func__, false, NULL);
    }
    unsigned int bus;
    if (!parse_bus_id(bus_id, &bus)) {
        ENTER_NODE(true);
        return NVML_ERROR_NOT_FOUND;
    }
    return find_gpu(__func__, has_bus, &bus, device);
}

/* Of a MIG handle: the index with which its parent gives it. */
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index) {
    ENTER_DEVICE(handle, ANY_DEVICE, index != NULL);
    *index = device.mig == NULL ? device.gpu : (unsigned int)device.instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor) {
    ENTER_DEVICE(handle, GPU_ONLY, minor != NULL);
    *minor = device.gpu;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length) {
    ENTER_DEVICE(handle, ANY_DEVICE, name != NULL);
    char text[sizeof device.identity.name + sizeof device.state.mig[0].profile + 8];
    if (device.mig == NULL) {
        return copy_text(device.identity.name, name, length);
    }
    snprintf(text, sizeof text, "%s MIG %s", device.identity.name, device.mig->profile);
    return copy_text(text, name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length) {
    ENTER_DEVICE(handle, ANY_DEVICE, uuid != NULL);
    return copy_text(device.mig == NULL ? device.identity.uuid : device.mig->uuid, uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci) {
    ENTER_DEVICE(handle, GPU_ONLY, pci != NULL);
    *pci = (nvmlPciInfo_t){
        .bus = device.identity.pci_bus,
        .pciDeviceId = device.identity.pci_device_id,
        .pciSubSystemId = device.identity.pci_subsystem_id,
    };
    unsigned int bus = device.identity.pci_bus & 0xFF;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", bus);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned int length) {
    ENTER_DEVICE(handle, GPU_ONLY, serial != NULL);
    return copy_text(device.identity.serial, serial, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char *version, unsigned int length) {
    ENTER_DEVICE(handle, GPU_ONLY, version != NULL);
    return copy_text(device.identity.vbios, version, length);
}

/* Data-centre cards of all generations go by the plain brand since driver 450. */
EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t handle, unsigned int *brand) {
    ENTER_DEVICE(handle, ANY_DEVICE, brand != NULL);
    *brand = NVML_BRAND_NVIDIA;
    return NVML_SUCCESS;
}

/* Versions that such cards were seen with; the whole store and its parts are not versioned alike. */
EXPORT nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t handle, char *version, unsigned int length) {
    ENTER_DEVICE(handle, GPU_ONLY, version != NULL);
    return copy_text("G520.0200.00.05", version, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t handle, unsigned int object, char *version,
                                                unsigned int length) {
    static const char *const versions[NVML_INFOROM_OBJECTS] = {"2.1", "7.16", NULL};
    ENTER_DEVICE(handle, GPU_ONLY, version != NULL && object < NVML_INFOROM_OBJECTS);
    return versions[object] == NULL ? NVML_ERROR_NOT_SUPPORTED : copy_text(versions[object], version, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t handle, unsigned int *architecture) {
    ENTER_DEVICE(handle, ANY_DEVICE, architecture != NULL);
    *architecture = device.identity.architecture;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
    ENTER_DEVICE(handle, ANY_DEVICE, major != NULL && minor != NULL);
    *major = (int)device.identity.compute_major;
    *minor = (int)device.identity.compute_minor;
    return NVML_SUCCESS;
}
