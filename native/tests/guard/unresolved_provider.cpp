// A library that calls what no library has, for basics.cpp.

extern "C" void chagres_nobody_has_this();

extern "C" __attribute__((visibility("default"))) void nvte_enable_cudnn_norm_fwd(bool) { chagres_nobody_has_this(); }
