a=xxxxxxxxxxxxxxxx
while :; do a+=$a; done
