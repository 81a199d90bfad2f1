/* A libcudart without devices, for tests. The NIXL wheel's GDS_MT plugin needs its calls to load. */

int cudaSetDevice(int device)
{
    (void)device;
    return 100; /* no device */
}

const char *cudaGetErrorString(int error) { return error ? "no GPU" : "no error"; }
