package dev.chagres.bindings;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
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
    private static final LoadFault.Supply NAMED = new LoadFault.Supply(
            "unset " + VARIABLE + ", for no other place is tried while it is set, or name another file with it",
            VARIABLE + "=FILE");
    private static final LoadFault.Supply INSTALLED = new LoadFault.Supply(
            "apt install libopenblas0, or name the file with " + VARIABLE + "=FILE", VARIABLE + "=FILE");
    /** The Fortran runtime, which OpenBLAS needs: it may lie beside it, off the loader's path. */
    private static final List<String> NEIGHBOURS = List.of("libquadmath.so.0", "libgfortran.so.5");

    /** Looks for it on behalf of the reference among {@code own}. */
    static OpenBlas find(OwnLibraries own) {
        Optional<String> named = own.surroundings().variable(VARIABLE);
        List<String> places = new ArrayList<>();
        named.ifPresentOrElse(places::add, () -> {
            NAMES.forEach(name -> places.add(own.folder().resolve(name).toString()));
            places.addAll(NAMES);
        });
        List<String> faults = new ArrayList<>();
        Optional<String> remedy = Optional.empty();
        for (String place : places) {
            Optional<String> fault = fault(place);
            if (fault.isEmpty()) {
                return new OpenBlas(Optional.of(place), "", "");
            }
            boolean isThere = place.contains("/") && Files.exists(Path.of(place));
            LoadFault.Supply supply = named.isPresent() ? NAMED : isThere ? own.supply() : INSTALLED;
            LoadFault known = LoadFault.of(Path.of(place), fault.get(), supply, own.surroundings());
            faults.add(place + ": " + (known.cause().isEmpty() ? fault.get() : known.cause()));
            remedy = remedy.isEmpty() && (isThere || named.isPresent()) ? Optional.of(known.remedy()) : remedy;
        }
        return new OpenBlas(Optional.empty(), String.join("\n", faults), remedy.orElse(INSTALLED.anew()));
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
