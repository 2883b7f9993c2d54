package dev.chagres.bindings;

import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.te.TransformerEngine;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.util.List;
import java.util.stream.Stream;

/** What jextract generated, by reflection, and the lists of what it was asked for. */
enum Bindings {
    TE("te", TransformerEngine.class),
    OPS("ops", Ops.class),
    CUDA("cuda", CudaRuntime.class),
    NCCL("nccl", Nccl.class),
    CUDNN("cudnn", Cudnn.class);

    private static final String DESCRIPTOR = "$descriptor";

    private final String list;
    private final Class<?> type;

    Bindings(String list, Class<?> type) {
        this.list = list;
        this.type = type;
    }

    Class<?> type() {
        return type;
    }

    /** Names asked for with {@code --include-KIND}, in the list that {@code regenerate.sh} wrote. */
    List<String> asked(String kind) {
        String option = "--include-" + kind + " ";
        try (Stream<String> lines = Files.lines(VendorFolder.project().resolve("bindings/symbols/" + list + ".txt"))) {
            return lines.filter(line -> line.startsWith(option))
                    .map(line -> line.substring(option.length()).strip())
                    .sorted()
                    .toList();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** The functions that the generated class has. */
    List<String> functions() {
        return Stream.of(type.getMethods())
                .map(Method::getName)
                .filter(name -> name.endsWith(DESCRIPTOR))
                .map(name -> name.substring(0, name.length() - DESCRIPTOR.length()))
                .sorted()
                .toList();
    }

    FunctionDescriptor descriptor(String function) {
        return (FunctionDescriptor) invoke(function + DESCRIPTOR);
    }

    MemorySegment address(String function) {
        return (MemorySegment) invoke(function + "$address");
    }

    MethodHandle handle(String function) {
        return (MethodHandle) invoke(function + "$handle");
    }

    /** The value of a constant. */
    Object constant(String name) {
        return invoke(name);
    }

    /** The class of a struct or union. */
    Class<?> struct(String name) {
        try {
            return Class.forName(type.getPackageName() + "." + name);
        } catch (ClassNotFoundException absent) {
            throw new AssertionError("no class for struct " + name, absent);
        }
    }

    private Object invoke(String method) {
        try {
            Method found = type.getMethod(method);
            found.setAccessible(true); // jextract declares part of a large class in a superclass that is not public
            return found.invoke(null);
        } catch (InvocationTargetException thrown) {
            throw new AssertionError(method + ": " + thrown.getCause(), thrown.getCause());
        } catch (ReflectiveOperationException absent) {
            throw new AssertionError(type.getSimpleName() + " has no " + method, absent);
        }
    }
}
