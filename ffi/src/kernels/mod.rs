//! Launchers of the kernels in `kernels/`, one file for each of theirs: the arguments as the kernel reads them, and
//! the grid that it wants. Also how weights are laid out for them.

#[cfg(test)]
mod tests;

pub mod attention;
pub mod attention_prefill;
pub mod check;
mod check_cache;
mod check_dense;
mod check_experts;
mod check_lora;
mod check_low;
mod check_many;
mod check_offload;
mod check_sample;
pub mod each;
pub mod embed;
pub mod experts;
pub mod fill;
pub mod gdn;
mod gemm;
pub mod grouped;
pub mod load;
pub mod lora;
pub mod low;
pub mod matmul;
pub mod norm;
pub mod offload;
pub mod pack;
pub mod route;
pub mod sample;

pub use pack::{Packing, pack};

/// Arguments of a kernel: plain numbers and addresses, laid out as in its source.
///
/// # Safety
/// The type is `repr(C)` and has no padding.
pub unsafe trait Args: Copy {
    fn bytes(&self) -> &[u8] {
        // SAFETY: a type without padding, as the trait demands.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>()) }
    }
}

/// A kernel's name, the file that it is in and the size of its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub name: &'static str,
    pub file: &'static str,
    pub args_bytes: usize,
}

macro_rules! kernels {
    ($($kernel:ident = $name:literal in $file:literal, $args:ty;)*) => {
        /// Every kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Kernel { $($kernel),* }

        /// In the order of [`Kernel`].
        pub const KERNELS: &[Entry] =
            &[$(Entry { name: $name, file: $file, args_bytes: size_of::<$args>() }),*];
    };
}

kernels! {
    Embed = "embed" in "embed.cu", embed::Embed;
    MatmulOne = "matmul_one" in "matmul.cu", matmul::Matmul;
    MatmulOneDeep = "matmul_one_deep" in "matmul.cu", matmul::Matmul;
    MatmulOneLong = "matmul_one_long" in "matmul.cu", matmul::Matmul;
    MatmulOneNormed = "matmul_one_normed" in "matmul.cu", matmul::Matmul;
    Matmul1 = "matmul_1" in "matmul.cu", matmul::Matmul;
    Matmul1Deep = "matmul_1_deep" in "matmul.cu", matmul::Matmul;
    Matmul2 = "matmul_2" in "matmul.cu", matmul::Matmul;
    Matmul4 = "matmul_4" in "matmul.cu", matmul::Matmul;
    Matmul8 = "matmul_8" in "matmul.cu", matmul::Matmul;
    MatmulWide = "matmul_wide" in "gemm.cu", matmul::Matmul;
    MatmulFloats = "matmul_floats" in "gemm.cu", matmul::Matmul;
    MatmulOneLow = "matmul_one_low" in "matmul.cu", matmul::LowMatmul;
    MatmulOneNormedLow = "matmul_one_normed_low" in "matmul.cu", matmul::LowMatmul;
    Matmul1Low = "matmul_1_low" in "matmul.cu", matmul::LowMatmul;
    Matmul1DeepLow = "matmul_1_deep_low" in "matmul.cu", matmul::LowMatmul;
    Matmul4Low = "matmul_4_low" in "matmul.cu", matmul::LowMatmul;
    MatmulWideLow = "matmul_wide_low" in "gemm.cu", matmul::LowMatmul;
    Norm = "rms_norm" in "norm.cu", norm::Norm;
    Halve = "halve" in "norm.cu", norm::Halve;
    Gather = "gather" in "norm.cu", norm::Gather;
    Gdn = "gdn" in "gdn.cu", gdn::Gdn;
    GdnBf16 = "gdn_bf16" in "gdn.cu", gdn::Gdn;
    GdnMany = "gdn_many" in "gdn.cu", gdn::Gdn;
    GdnManyBf16 = "gdn_many_bf16" in "gdn.cu", gdn::Gdn;
    GdnPrepare = "gdn_prepare" in "gdn_walk.cu", gdn::Walk;
    GdnWalk = "gdn_walk" in "gdn_walk.cu", gdn::Walk;
    GdnWalkBf16 = "gdn_walk_bf16" in "gdn_walk.cu", gdn::Walk;
    GdnFinish = "gdn_finish" in "gdn_walk.cu", gdn::Walk;
    AttentionCache = "attention_cache" in "attention.cu", attention::Cache;
    Attention = "attention" in "attention.cu", attention::Attention;
    AttentionJoin = "attention_join" in "attention.cu", attention::Join;
    AttentionPrefill128 = "attention_prefill_128" in "attention_prefill.cu", attention_prefill::Prefill;
    AttentionPrefill256 = "attention_prefill_256" in "attention_prefill.cu", attention_prefill::Prefill;
    AttentionPrefillBlocks128 = "attention_prefill_blocks_128" in "attention_prefill.cu", attention_prefill::Prefill;
    AttentionPrefillBlocks256 = "attention_prefill_blocks_256" in "attention_prefill.cu", attention_prefill::Prefill;
    Attend = "attend" in "attend.cu", attention::Attend;
    AttendBlocks = "attend_blocks" in "attend.cu", attention::Attend;
    AttendJoin = "attend_join" in "attend.cu", attention::Join;
    Route = "route" in "route.cu", route::Route;
    RouteChoose = "route_choose" in "sort.cu", route::Route;
    RouteSort = "route_sort" in "sort.cu", route::Route;
    RouteWork = "route_work" in "sort.cu", route::Work;
    ExpertsUpOne = "experts_up_one" in "experts.cu", experts::Experts;
    ExpertsUpDense = "experts_up_dense" in "experts.cu", experts::Experts;
    ExpertsUp1 = "experts_up_1" in "experts.cu", experts::Experts;
    ExpertsDown1 = "experts_down_1" in "experts.cu", experts::Experts;
    ExpertsUpJoined = "experts_up_joined" in "experts.cu", experts::Experts;
    GroupedUp = "grouped_up" in "grouped.cu", grouped::Grouped;
    GroupedUpJoined = "grouped_up_joined" in "grouped.cu", grouped::Grouped;
    GroupedDown = "grouped_down" in "grouped.cu", grouped::Grouped;
    ExpertsDownEach = "experts_down_each" in "experts.cu", experts::Experts;
    EachUp = "each_up" in "each.cu", each::Each;
    EachUpOne = "each_up_one" in "each.cu", each::Each;
    EachDown = "each_down" in "each.cu", each::Each;
    EachDownOne = "each_down_one" in "each.cu", each::Each;
    GroupedDownLow = "grouped_down_low" in "grouped.cu", grouped::Grouped;
    EachUpLow = "each_up_low" in "each.cu", each::LowEach;
    EachUpOneLow = "each_up_one_low" in "each.cu", each::LowEach;
    EachDownLow = "each_down_low" in "each.cu", each::LowEach;
    EachDownOneLow = "each_down_one_low" in "each.cu", each::LowEach;
    OffloadChoose = "offload_choose" in "offload.cu", offload::Offload;
    OffloadCopy = "offload_copy" in "offload.cu", offload::Offload;
    LoraInner = "lora_inner" in "lora.cu", lora::Lora;
    LoraAdd = "lora_add" in "lora.cu", lora::Lora;
    ArgmaxGroups = "argmax_groups" in "sample.cu", sample::Argmax;
    Argmax = "argmax" in "sample.cu", sample::Argmax;
    LikelyMax = "likely_max" in "sample.cu", sample::Likely;
    LikelyCollect = "likely_collect" in "sample.cu", sample::Likely;
    Fill = "fill" in "fill.cu", fill::Fill;
    Stream = "stream" in "fill.cu", fill::Stream;
}

/// Declares arguments of a kernel.
macro_rules! args {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),* }

        // SAFETY: `repr(C)`; the sum of the fields is the size, so there is no padding.
        unsafe impl $crate::kernels::Args for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "no padding");
    };
}
use args;
