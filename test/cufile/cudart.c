/* A libcudart of ours, without devices: what the wheel's GDS_MT plugin needs to load. */

int cudaSetDevice(int device) {
    (void)device;
    return 100; /* no device */
}

const char *cudaGetErrorString(int error) {
    return error ? "no GPU" : "no error";
}
