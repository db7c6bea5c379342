DEFINE_ACTIVATION(sigmoid, logistic)
