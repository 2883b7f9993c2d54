package dev.chagres.bindings;

import java.util.List;
import java.util.Locale;
import java.util.Optional;

/**
 * NVIDIA's libraries in the order in which they are opened: each finds those it needs already there.
 *
 * <p>The names of files, folders and packages are those of NVIDIA's Python packages for CUDA 13 and of its CUDA toolkit.
 */
enum VendorLibrary {
    CUDA_RUNTIME(
            "CUDA runtime",
            "cudart",
            Files.ofToolkit("libcudart.so.13"),
            "nvidia-cuda-runtime==13.0.96",
            VersionWindow.of(13, 0, 14, 0)),
    NVRTC(
            "NVRTC",
            "nvrtc",
            Files.ofToolkit("libnvrtc-builtins.so.13.*", "libnvrtc.so.13"),
            "nvidia-cuda-nvrtc==13.0.88",
            VersionWindow.of(13, 0, 14, 0)),
    CUBLAS(
            "cuBLAS",
            "cublas",
            Files.ofToolkit("libcublasLt.so.13", "libcublas.so.13"),
            "nvidia-cublas==13.1.0.3",
            VersionWindow.of(13, 0, 14, 0)),
    CUDNN(
            "cuDNN",
            "cudnn",
            new Files(
                    List.of(
                            "libcudnn_graph.so.9",
                            "libcudnn_ops.so.9",
                            "libcudnn_cnn.so.9",
                            "libcudnn_adv.so.9",
                            "libcudnn_engines_runtime_compiled.so.9",
                            "libcudnn_engines_precompiled.so.9",
                            "libcudnn_heuristic.so.9",
                            "libcudnn.so.9"),
                    List.of("nvidia/cudnn/lib"),
                    List.of("CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH")),
            "nvidia-cudnn-cu13==9.19.0.56",
            VersionWindow.of(9, 19, 10, 0)),
    NCCL(
            "NCCL",
            "nccl",
            new Files(
                    List.of("libnccl.so.2"),
                    List.of("nvidia/nccl/lib"),
                    List.of("NCCL_HOME", "CUDA_HOME", "CUDA_PATH")),
            "nvidia-nccl-cu13==2.28.9",
            VersionWindow.of(2, 28, 3, 0)),
    TRANSFORMER_ENGINE(
            "Transformer Engine",
            "te",
            new Files(
                    List.of("libtransformer_engine.so"),
                    List.of("transformer_engine/wheel_lib", "transformer_engine", ""),
                    List.of("TE_LIBRARY")),
            "transformer_engine_cu13==2.20.2",
            VersionWindow.of(2, 20, 2, 21));

    /**
     * Where a library's files are.
     *
     * @param parts every file in the order of opening, as glob patterns; all lie in one folder, the last is the one that
     *     programs link against and that answers for the version
     * @param pythonFolders folders below Python's site-packages
     * @param homes environment variables that name an installation folder, or a file
     */
    private record Files(List<String> parts, List<String> pythonFolders, List<String> homes) {
        static Files ofToolkit(String... parts) {
            return new Files(List.of(parts), List.of("nvidia/cu13/lib"), List.of("CUDA_HOME", "CUDA_PATH"));
        }
    }

    private final String title;
    private final String key;
    private final Files files;
    private final String requirement;
    private final VersionWindow window;

    VendorLibrary(String title, String key, Files files, String requirement, VersionWindow window) {
        this.title = title;
        this.key = key;
        this.files = files;
        this.requirement = requirement;
        this.window = window;
    }

    String title() {
        return title;
    }

    /** The property that names a file or folder, such as {@code chagres.cudnn.path}. */
    String property() {
        return "chagres." + key + ".path";
    }

    /** The environment variable that names a file or folder, such as {@code CHAGRES_CUDNN_PATH}. */
    String variable() {
        return "CHAGRES_" + key.toUpperCase(Locale.ROOT) + "_PATH";
    }

    /** Other variables that name an installation folder, or a file. */
    List<String> homes() {
        return files.homes();
    }

    /** Every file of the library in the order of opening, as glob patterns; all lie in one folder. */
    List<String> parts() {
        return files.parts();
    }

    /** The last part: the one that programs link against, and that answers for the version. */
    String mainPart() {
        return parts().getLast();
    }

    /** Folders below Python's site-packages. */
    List<String> pythonFolders() {
        return files.pythonFolders();
    }

    /** What pip is asked for. */
    String requirement() {
        return requirement;
    }

    /** The folder, as a glob pattern, in which pip keeps what it knows of the library's package. */
    String packageInfo() {
        String name = requirement.substring(0, requirement.indexOf("=="));
        String common = this == TRANSFORMER_ENGINE ? name.replace("_cu13", "*") : name;
        return common.replace('-', '_') + "-*.dist-info";
    }

    VersionWindow window() {
        return window;
    }

    /** Which side must move, for a version outside the window. */
    String side(LibraryVersion version) {
        return window.side(title, version);
    }

    /** How its files come to their place. */
    LoadFault.Supply supply() {
        return new LoadFault.Supply(remedy(), "-D" + property() + "=DIR");
    }

    /** What is needed so that the version is known; empty for a library that tells its own. */
    Optional<String> versionSource() {
        return this == TRANSFORMER_ENGINE
                ? Optional.of("its version is that of its Python package, whose folder " + packageInfo()
                        + " must lie beside it or up to three folders above")
                : Optional.empty();
    }

    /** The line that brings the library. */
    String remedy() {
        return "pip install " + requirement + ", or name its folder with -D" + property() + "=DIR";
    }
}
