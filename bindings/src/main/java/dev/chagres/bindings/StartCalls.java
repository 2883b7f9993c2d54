package dev.chagres.bindings;

import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** The calls that set our own libraries up, made before any generated binding may be touched. */
final class StartCalls {

    private static final ValueLayout.OfInt STATUS = ValueLayout.JAVA_INT;

    private StartCalls() {}

    /** What {@code te_open} says about the library that provides the {@code nvte_} functions; empty when it opened it. */
    static Optional<String> teOpen(Path library) {
        int status = call("te_open", library.toString());
        return status == 0 ? Optional.empty() : Optional.of(ErrorTexts.text("te_last_error"));
    }

    /** Sets an environment variable that libraries read; Java cannot. */
    static void setEnvironment(String name, String value) {
        Status.te(call("te_set_environment", name, value), "te_set_environment");
    }

    /** Opens CUDA runtime and NVRTC for the operations; the reference needs neither. */
    static void opsOpen(@Nullable Path runtime, @Nullable Path nvrtc, @Nullable Path headers, @Nullable Path cache) {
        Status.ops(call("ops_open", text(runtime), text(nvrtc), text(headers), text(cache)), "ops_open");
    }

    private static @Nullable String text(@Nullable Path path) {
        return path == null ? null : path.toString();
    }

    private static MissingLibraryException lacks(String function) {
        String remedy = "use the chagres-native jar of the same version; -D" + OwnLibraries.PROPERTY
                + " must not name a folder of another version";
        return new MissingLibraryException(
                OwnLibraries.NAME,
                new Finding(Reason.NOT_LOADABLE, "no opened library has " + function, List.of(), "", remedy));
    }

    private static int call(String function, @Nullable String... arguments) {
        MemorySegment[] parameters = new MemorySegment[arguments.length];
        ValueLayout[] layouts = new ValueLayout[arguments.length];
        MemorySegment address = OpenedLibraries.LOOKUP.find(function).orElseThrow(() -> lacks(function));
        try (Arena arena = Arena.ofConfined()) {
            for (int i = 0; i < arguments.length; i++) {
                String argument = arguments[i];
                parameters[i] = argument == null ? MemorySegment.NULL : arena.allocateFrom(argument);
                layouts[i] = ValueLayout.ADDRESS;
            }
            MethodHandle handle = Linker.nativeLinker().downcallHandle(address, FunctionDescriptor.of(STATUS, layouts));
            return (int) handle.invokeWithArguments((Object[]) parameters);
        } catch (Throwable unexpected) {
            throw new AssertionError(function + " could not be called", unexpected);
        }
    }
}
