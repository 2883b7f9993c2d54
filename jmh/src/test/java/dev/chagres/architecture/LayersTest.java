package dev.chagres.architecture;

import static com.tngtech.archunit.core.domain.JavaClass.Predicates.resideInAnyPackage;
import static com.tngtech.archunit.core.domain.JavaClass.Predicates.resideOutsideOfPackages;
import static com.tngtech.archunit.core.domain.properties.HasName.Predicates.nameMatching;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.tngtech.archunit.base.DescribedPredicate;
import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.domain.JavaCodeUnit;
import com.tngtech.archunit.core.domain.JavaField;
import com.tngtech.archunit.core.domain.JavaMember;
import com.tngtech.archunit.core.domain.JavaModifier;
import com.tngtech.archunit.core.domain.JavaPackage;
import com.tngtech.archunit.core.domain.JavaType;
import com.tngtech.archunit.core.domain.properties.HasModifiers;
import com.tngtech.archunit.core.domain.properties.HasName;
import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.junit.AnalyzeClasses;
import com.tngtech.archunit.junit.ArchTag;
import com.tngtech.archunit.junit.ArchTest;
import com.tngtech.archunit.lang.ArchRule;
import com.tngtech.archunit.library.dependencies.SliceAssignment;
import com.tngtech.archunit.library.dependencies.SliceIdentifier;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.jspecify.annotations.NullMarked;

/** The arrows of docs/architecture.md, and the house's names, held against every class of every module. */
@ArchTag("L0")
@AnalyzeClasses(packages = "dev.chagres", importOptions = ImportOption.DoNotIncludeTests.class)
class LayersTest {
    private static final String[] GENERATED = {
        "dev.chagres.bindings.te",
        "dev.chagres.bindings.ops",
        "dev.chagres.bindings.nccl",
        "dev.chagres.bindings.cudnn",
        "dev.chagres.bindings.cuda"
    };
    private static final String[] BINDINGS = {"dev.chagres.bindings.."};
    private static final String[] ABOVE_THE_API = {
        "dev.chagres.models..", "dev.chagres.trainer..", "dev.chagres.samples..", "dev.chagres.jmh.."
    };
    /** The root has devices, streams, events and the copies of tensors. */
    private static final String[] CALLERS = {
        "dev.chagres",
        "dev.chagres.te",
        "dev.chagres.cudnn",
        "dev.chagres.ops",
        "dev.chagres.nccl",
        "dev.chagres.internal.memory"
    };

    private static final DescribedPredicate<JavaClass> API = resideInAnyPackage("dev.chagres..")
            .and(resideOutsideOfPackages(BINDINGS))
            .and(resideOutsideOfPackages(ABOVE_THE_API))
            .as("belong to the api");

    @ArchTest
    static final ArchRule bindingsKnowNothingAbove = noClasses()
            .that()
            .resideInAnyPackage(BINDINGS)
            .should()
            .dependOnClassesThat(API.or(resideInAnyPackage(ABOVE_THE_API)));

    @ArchTest
    static final ArchRule apiKnowsNoUser =
            noClasses().that(API).should().dependOnClassesThat(resideInAnyPackage(ABOVE_THE_API));

    @ArchTest
    static final ArchRule modelsKnowNoTrainer = noClasses()
            .that()
            .resideInAnyPackage("dev.chagres.models..")
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage("dev.chagres.trainer..");

    /** Samples show how the others are used, and no other module needs a sample. */
    @ArchTest
    static final ArchRule nothingNeedsSamplesOrBenchmarks = noClasses()
            .that()
            .resideOutsideOfPackages("dev.chagres.samples..", "dev.chagres.jmh..")
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage("dev.chagres.samples..", "dev.chagres.jmh..");

    @ArchTest
    static final ArchRule samplesAndBenchmarksKnowNotEachOther =
            slices().matching("dev.chagres.(samples|jmh)..").should().notDependOnEachOther();

    /**
     * The module for Spark stands on the others, and is built when it is asked for. Parquet's methods have a class of Hadoop in their
     * signatures, which a library has in place of Hadoop.
     */
    @ArchTest
    static final ArchRule nothingNeedsSpark = noClasses()
            .that()
            .haveNameNotMatching("dev\\.chagres\\.trainer\\.command\\.EmbeddingParquet.*")
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage("dev.chagres.spark..", "org.apache.spark..", "org.apache.hadoop..", "scala..");

    @ArchTest
    static final ArchRule internalsStayInside = noClasses()
            .that()
            .resideInAnyPackage(ABOVE_THE_API)
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage("dev.chagres.internal..");

    /** Who knows whom has one direction, between packages as between modules. */
    @ArchTest
    static final ArchRule noPackageCycles = slices().assignedFrom(new SliceAssignment() {
                @Override
                public SliceIdentifier getIdentifierOf(JavaClass type) {
                    return API.test(type) ? SliceIdentifier.of(type.getPackageName()) : SliceIdentifier.ignore();
                }

                @Override
                public String getDescription() {
                    return "packages of the api";
                }
            })
            .should()
            .beFreeOfCycles();

    /** Everybody else calls the safe methods over tensors. */
    @ArchTest
    static final ArchRule bindingsAreCalledFromSixPackages = noClasses()
            .that(API.and(resideOutsideOfPackages(CALLERS)))
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage(GENERATED);

    /** What a program can name or is handed is not internal, nor is a part of a generic type or an exception. */
    @ArchTest
    static void publicTypesShowNoInternalOnes(JavaClasses all) {
        List<String> shown = all.that(API.and(resideOutsideOfPackages("dev.chagres.internal.."))).stream()
                .filter(LayersTest::isOpen)
                .flatMap(type -> Stream.concat(
                        shown(type, Stream.concat(type.getInterfaces().stream(), type.getSuperclass().stream())),
                        type.getMembers().stream()
                                .filter(LayersTest::isOpen)
                                .flatMap(member -> shown(member, types(member)))))
                .distinct()
                .sorted()
                .toList();
        assertEquals(List.of(), shown, "internal types that public ones show");
    }

    private static boolean isOpen(JavaClass type) {
        boolean open = isOpen((HasModifiers) type);
        return open && type.getEnclosingClass().map(LayersTest::isOpen).orElse(true);
    }

    private static boolean isOpen(HasModifiers member) {
        return member.getModifiers().contains(JavaModifier.PUBLIC)
                || member.getModifiers().contains(JavaModifier.PROTECTED);
    }

    private static Stream<JavaType> types(JavaMember member) {
        if (member instanceof JavaField field) {
            return Stream.of(field.getType());
        }
        JavaCodeUnit unit = (JavaCodeUnit) member;
        Stream<JavaType> thrown = unit.getThrowsClause().getTypes().stream().map(JavaType.class::cast);
        Stream<JavaType> bounds =
                unit.getTypeParameters().stream().flatMap(variable -> variable.getUpperBounds().stream());
        return Stream.of(Stream.of(unit.getReturnType()), unit.getParameterTypes().stream(), thrown, bounds)
                .flatMap(types -> types);
    }

    private static Stream<String> shown(HasName.AndFullName owner, Stream<? extends JavaType> types) {
        return types.flatMap(type -> type.getAllInvolvedRawTypes().stream())
                .filter(type -> type.getPackageName().startsWith("dev.chagres.internal"))
                .map(type -> owner.getFullName() + " shows " + type.getName());
    }

    /** jextract splits a large header over X, X_1, X_2 …; which function lies where changes with every regeneration. */
    @ArchTest
    static final ArchRule noNumberedBindings = noClasses()
            .that()
            .resideOutsideOfPackages(GENERATED)
            .should()
            .dependOnClassesThat(resideInAnyPackage(GENERATED)
                    .and(nameMatching(".*_\\d+(\\$.*)?").forSubtype())
                    .as("are numbered parts of generated bindings"));

    @ArchTest
    static final ArchRule namesSayWhatAClassIs = classes()
            .that()
            .resideOutsideOfPackages(GENERATED)
            .should()
            .haveNameNotMatching(".*(Util|Utils|Helper|Helpers|Manager|Impl)(\\$.*)?");

    @ArchTest
    static final ArchRule generatedCodeStandsAlone = noClasses()
            .that()
            .resideInAnyPackage(GENERATED)
            .should()
            .dependOnClassesThat(resideInAnyPackage("dev.chagres..")
                    .and(resideOutsideOfPackages(GENERATED))
                    .and(resideOutsideOfPackages(BINDINGS)
                            .or(nameMatching("dev\\.chagres\\.bindings\\.(?!OpenedLibraries$).*")))
                    .as("belong to Chagres, but for where functions are looked up"));

    @ArchTest
    static void theArchitecturePageNamesEveryPublicType(JavaClasses all) throws IOException {
        String page = Files.readString(Path.of("").toAbsolutePath().resolveSibling("docs/architecture.md"));
        List<String> unnamed = all
                .that(API.or(resideInAnyPackage("dev.chagres.bindings"))
                        .and(resideOutsideOfPackages("dev.chagres.internal..")))
                .stream()
                .filter(type -> type.isTopLevelClass() && type.getModifiers().contains(JavaModifier.PUBLIC))
                .map(JavaClass::getSimpleName)
                .filter(name -> !page.contains("`" + name + "`"))
                .sorted()
                .toList();
        assertEquals(List.of(), unnamed, "public types that docs/architecture.md does not name in its package tables");
    }

    @ArchTest
    static void handWrittenPackagesAreNullMarked(JavaClasses all) {
        List<String> unmarked = all.that(resideOutsideOfPackages(GENERATED)).stream()
                .map(JavaClass::getPackage)
                .filter(candidate -> !candidate.isAnnotatedWith(NullMarked.class))
                .map(JavaPackage::getName)
                .filter(name -> !name.endsWith(".jmh_generated"))
                .distinct()
                .sorted()
                .toList();
        assertEquals(List.of(), unmarked, "packages whose package-info lacks @NullMarked");
    }
}
