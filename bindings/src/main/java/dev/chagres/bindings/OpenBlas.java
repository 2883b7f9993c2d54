package dev.chagres.bindings;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * OpenBLAS, looked for as the CPU reference does it: the named file alone, else beside the reference, else on the loader's
 * path; a file counts when it opens and has {@code cblas_sgemm}.
 *
 * <p>Threading: immutable.
 *
 * @param place of the one that serves; empty when none does
 * @param problem what is wrong with each place, a line each; {@code ""} when one serves
 * @param remedy what mends it; {@code ""} when one serves
 */
record OpenBlas(Optional<String> place, String problem, String remedy) {
    /** Names the file. */
    static final String VARIABLE = "CHAGRES_OPENBLAS";

    private static final List<String> NAMES = List.of("libopenblas_nolapack.so.0", "libopenblas.so.0");
    /** The Fortran runtime, which OpenBLAS needs: it may lie beside it, off the loader's path. */
    private static final List<String> NEIGHBOURS = List.of("libquadmath.so.0", "libgfortran.so.5");

    /** Looks for it on behalf of the reference in {@code folder}. */
    static OpenBlas find(Surroundings surroundings, Path folder) {
        Optional<String> named = surroundings.variable(VARIABLE);
        List<String> places = new ArrayList<>();
        named.ifPresentOrElse(places::add, () -> {
            NAMES.forEach(name -> places.add(folder.resolve(name).toString()));
            places.addAll(NAMES);
        });
        List<String> faults = new ArrayList<>();
        for (String place : places) {
            Optional<String> fault = fault(place);
            if (fault.isEmpty()) {
                return new OpenBlas(Optional.of(place), "", "");
            }
            faults.add(place + ": " + fault.get());
        }
        return new OpenBlas(Optional.empty(), String.join("\n", faults), remedy(named));
    }

    private static String remedy(Optional<String> named) {
        return named.isPresent()
                ? "unset " + VARIABLE + ", for no other place is tried while it is set, or name another file with it"
                : "apt install libopenblas0, or name the file with " + VARIABLE + "=FILE";
    }

    private static Optional<String> fault(String place) {
        if (place.contains("/")) {
            Path folder = Path.of(place).toAbsolutePath().getParent();
            NEIGHBOURS.forEach(
                    name -> open(folder == null ? name : folder.resolve(name).toString()));
        }
        try {
            MemorySegment library = DynamicLinker.open(place, DynamicLinker.NOW);
            boolean serves = DynamicLinker.function(library, "cblas_sgemm", FunctionDescriptor.ofVoid())
                    .isPresent();
            return serves ? Optional.empty() : Optional.of("it opens, but has no cblas_sgemm");
        } catch (DynamicLinker.Refusal refusal) {
            return Optional.of(refusal.loaderText());
        }
    }

    /** Opens a neighbour; where it does not open, OpenBLAS may find it elsewhere. */
    private static void open(String name) {
        try {
            DynamicLinker.open(name, DynamicLinker.NOW);
        } catch (DynamicLinker.Refusal elsewhere) {
            // Whether it is missed, OpenBLAS itself tells.
        }
    }
}
