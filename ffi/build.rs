//! Compiles the C++ guard around libllama (feature `llama`): the calls that may throw, behind
//! functions that catch.

fn main() {
    println!("cargo:rerun-if-changed=src/ggml/llama/guard.cpp");
    #[cfg(feature = "llama")]
    guard();
}

#[cfg(feature = "llama")]
fn guard() {
    // llama-cpp-sys-2 says where its CMake files are installed: OUT/lib/cmake; headers: OUT/include.
    let cmake = std::env::var_os("DEP_LLAMA_GGML_CMAKE_DIR").map(std::path::PathBuf::from);
    let include = cmake.as_deref().and_then(|p| p.ancestors().nth(2)).map(|p| p.join("include"));
    let Some(include) = include.filter(|p| p.join("llama.h").is_file()) else {
        println!("cargo:warning=the headers of llama-cpp-sys-2 are not where they were expected");
        std::process::exit(1);
    };
    cc::Build::new().cpp(true).std("c++17").include(include).file("src/ggml/llama/guard.cpp").compile("chimere_guard");
}
