import pickle, inspect, dataclasses, typing, enum
@dataclasses.dataclass
class Point:
    x: "int"
    y: typing.Optional["Point"] = None
class Colour(enum.Enum): RED = 1
def twice(n):
    # a comment
    return 2 * n
print(pickle.loads(pickle.dumps([Point(1, Point(2)), Colour.RED, twice])), Point.__module__)
print(pickle.dumps(Point(1)))
print(inspect.getsource(twice), inspect.getfile(Point), inspect.getsourcelines(Point)[1], inspect.stack()[0].filename, len(inspect.stack()))
print(typing.get_type_hints(Point), inspect.getmodule(twice), inspect.getcomments(twice))
