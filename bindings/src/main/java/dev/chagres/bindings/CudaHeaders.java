package dev.chagres.bindings;

import dev.chagres.bindings.MissingLibraryException.Attempt;
import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The folder with {@code cuda_runtime.h}: Transformer Engine compiles its norms and softmaxes on the machine, through
 * NVRTC, and looks for the headers in {@code NVTE_CUDA_INCLUDE_DIR}.
 */
final class CudaHeaders {

    static final String NAME = "CUDA headers";
    static final String PROPERTY = "chagres.cuda.include";
    static final String VARIABLE = "NVTE_CUDA_INCLUDE_DIR";
    static final int WANTED_MAJOR = 13;
    /** What pip is asked for. */
    static final List<String> REQUIREMENTS = List.of("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88");

    static final String REMEDY = "pip install " + String.join(" ", REQUIREMENTS)
            + ", or name the folder that has cuda_runtime.h with -D" + PROPERTY + "=DIR";

    private static final List<String> FILES = List.of("cuda_runtime.h", "cuda_runtime_api.h", "crt/host_defines.h");
    private static final Pattern VERSION = Pattern.compile("#define\\s+CUDART_VERSION\\s+(\\d{1,9})");

    private CudaHeaders() {}

    /**
     * Finds the headers: property, variable, home variables, beside the CUDA runtime, Python, toolkits. A property or variable
     * that is set and does not serve ends the search.
     *
     * @throws MissingLibraryException when no place has the headers of CUDA 13
     */
    static Path find(Surroundings surroundings, Path runtimeFolder) {
        List<Attempt> attempts = new ArrayList<>();
        for (Map.Entry<Path, String> place : places(surroundings, runtimeFolder).entrySet()) {
            Optional<String> fault = fault(place.getKey());
            if (fault.isEmpty()) {
                return place.getKey();
            }
            attempts.add(new Attempt(place.getValue() + " " + place.getKey(), fault.get()));
        }
        String detail = "cuda_runtime.h of CUDA " + WANTED_MAJOR;
        throw new MissingLibraryException(NAME, new Finding(Reason.NOT_FOUND, detail, attempts, "", REMEDY));
    }

    private static Map<Path, String> places(Surroundings surroundings, Path runtimeFolder) {
        Optional<String> property = surroundings.property(PROPERTY);
        if (property.isPresent()) {
            return Map.of(Path.of(property.get()).toAbsolutePath(), "-D" + PROPERTY);
        }
        Map<Path, String> places = new LinkedHashMap<>();
        addVariable(VARIABLE, surroundings, places);
        if (!places.isEmpty()) {
            return places;
        }
        List.of("CUDA_HOME", "CUDA_DIR", "CUDA_PATH").forEach(home -> addVariable(home, surroundings, places));
        places.putIfAbsent(runtimeFolder.resolve("../include").normalize(), "beside the CUDA runtime");
        PythonFolders.of(surroundings)
                .forEach((site, origin) -> places.putIfAbsent(site.resolve("nvidia/cu13/include"), origin));
        places.putIfAbsent(surroundings.absolute("/usr/local/cuda/include"), "CUDA toolkit");
        places.putIfAbsent(surroundings.absolute("/usr/include"), "system");
        return places;
    }

    /** The folder that a variable names, or its {@code include}. */
    private static void addVariable(String variable, Surroundings surroundings, Map<Path, String> places) {
        surroundings.variable(variable).map(Path::of).ifPresent(folder -> {
            places.putIfAbsent(folder, variable);
            places.putIfAbsent(folder.resolve("include"), variable);
        });
    }

    private static Optional<String> fault(Path folder) {
        if (!Files.isDirectory(folder)) {
            return Optional.of("no such folder");
        }
        for (String file : FILES) {
            if (!Files.isRegularFile(folder.resolve(file))) {
                return Optional.of("has no " + file);
            }
        }
        return major(folder) == WANTED_MAJOR
                ? Optional.empty()
                : Optional.of("has the headers of CUDA " + major(folder) + ", wanted " + WANTED_MAJOR);
    }

    /** The CUDA version that the headers are of; 0 when they do not say. */
    private static int major(Path folder) {
        try {
            String text = Files.readString(folder.resolve("cuda_runtime_api.h"), StandardCharsets.ISO_8859_1);
            Matcher version = VERSION.matcher(text);
            return version.find() ? Integer.parseInt(version.group(1)) / 1000 : 0;
        } catch (IOException unreadable) {
            return 0;
        }
    }
}
