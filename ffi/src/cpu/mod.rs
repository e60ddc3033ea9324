//! CPU kernels: thread pool, packed weight matrices, matrix products and the model's pointwise
//! operations, each with a portable form and faster forms chosen at run time.
