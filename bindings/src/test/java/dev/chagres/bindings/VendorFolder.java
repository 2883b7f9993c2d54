package dev.chagres.bindings;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.ExtensionContext;

/** The pinned vendor libraries: {@code -Dchagres.vendor.path}, else where {@code native/vendor/fetch.sh} puts them. */
public final class VendorFolder implements ExecutionCondition {

    private static final int HASH_CHARACTERS = 16;

    /** The project's folder. */
    static Path project() {
        Path folder = Path.of("").toAbsolutePath();
        return Files.exists(folder.resolve("native/vendor/pins.txt")) ? folder : folder.resolveSibling("");
    }

    static Path pins() {
        return project().resolve("native/vendor/pins.txt");
    }

    static Path folder() {
        Surroundings surroundings = Surroundings.ofProcess();
        return surroundings
                .property("chagres.vendor.path")
                .map(Path::of)
                .orElseGet(() -> surroundings
                        .cache()
                        .resolve("vendor")
                        .resolve(hash(pins()).substring(0, HASH_CHARACTERS)));
    }

    /** JVM options under which exactly these libraries are found. */
    static List<String> options() {
        List<String> options = new ArrayList<>(List.of("-Dchagres.provider=cuda"));
        for (VendorLibrary library : VendorLibrary.values()) {
            options.add("-D" + library.property() + "="
                    + folder().resolve(library.pythonFolders().getFirst()));
        }
        return options;
    }

    private static String hash(Path file) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(file)));
        } catch (IOException | GeneralSecurityException failure) {
            throw new AssertionError(failure);
        }
    }

    @Override
    public ConditionEvaluationResult evaluateExecutionCondition(ExtensionContext context) {
        Path folder = folder();
        if (Files.isDirectory(folder)) {
            return ConditionEvaluationResult.enabled("NVIDIA's libraries are in " + folder);
        }
        String reason = "NVIDIA's libraries are not in " + folder + "; native/vendor/fetch.sh brings them";
        if ("true".equals(System.getenv("CI")) || Boolean.getBoolean("chagres.vendor.required")) {
            throw new AssertionError(reason);
        }
        System.out.println("skipped " + context.getDisplayName() + ": " + reason);
        return ConditionEvaluationResult.disabled(reason);
    }
}
