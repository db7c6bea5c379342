DEFINE_ACTIVATION(hard_sigmoid, ramp)
